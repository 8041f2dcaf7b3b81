// Arrays that start on a cache line and start as zeros.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace frugalvit {

inline constexpr std::align_val_t cache_line{64};

struct FreeAligned {
    void operator()(void* memory) const { ::operator delete(memory, cache_line); }
};

template <class T>
class Array {
public:
    Array() = default;
    explicit Array(std::size_t size) : size_(size), data_(static_cast<T*>(::operator new(padded_bytes(size), cache_line))) {
        std::memset(static_cast<void*>(data_.get()), 0, padded_bytes(size));
    }

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    T& operator[](std::size_t index) { return data_.get()[index]; }
    const T& operator[](std::size_t index) const { return data_.get()[index]; }

private:
    static std::size_t padded_bytes(std::size_t size) { return (size * sizeof(T) + 127) / 64 * 64; }

    std::size_t size_ = 0;
    std::unique_ptr<T, FreeAligned> data_;
};

}  // namespace frugalvit
