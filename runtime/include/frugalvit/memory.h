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
    // `shift` cache lines stay free in front: arrays that are used together should not all start at the same place of a page,
    // or their rows compete for the same lines of the cache.
    explicit Array(std::size_t size, std::size_t shift = 0) : size_(size) {
        const std::size_t bytes = padded_bytes(size) + 64 * shift;
        memory_.reset(static_cast<char*>(::operator new(bytes, cache_line)));
        std::memset(memory_.get(), 0, bytes);
        data_ = reinterpret_cast<T*>(memory_.get() + 64 * shift);
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }
    T& operator[](std::size_t index) { return data_[index]; }
    const T& operator[](std::size_t index) const { return data_[index]; }

private:
    static std::size_t padded_bytes(std::size_t size) { return (size * sizeof(T) + 127) / 64 * 64; }

    std::size_t size_ = 0;
    std::unique_ptr<char, FreeAligned> memory_;
    T* data_ = nullptr;
};

}  // namespace frugalvit
