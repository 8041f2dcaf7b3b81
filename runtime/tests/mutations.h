// Damaging packed files in ways that get past the checksum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "frugalvit/file.h"

namespace frugalvit {

using Bytes = std::vector<std::uint8_t>;

// Writes the right checksum, where the file still has a place for it.
inline void with_checksum(Bytes& bytes) {
    static constexpr std::string_view name = "\"checksum\":\"";
    const auto found = std::search(bytes.begin(), bytes.end(), name.begin(), name.end());
    if (bytes.end() - found < static_cast<std::ptrdiff_t>(name.size() + 8)) return;
    std::uint8_t* digits = &*found + name.size();
    std::memset(digits, '0', 8);
    char text[9];
    std::snprintf(text, sizeof text, "%08x", crc32(bytes));
    std::memcpy(digits, text, 8);
}

class Mutator {
public:
    Mutator(Bytes original, unsigned seed) : original_(std::move(original)), engine_(seed) {
        std::uint64_t size;
        std::memcpy(&size, original_.data(), 8);
        header_ = static_cast<std::size_t>(size);
    }

    Bytes next() {
        Bytes bytes = original_;
        const int changes = 1 + below(3);
        for (int i = 0; i < changes; ++i) change(bytes);
        if (below(8) != 0) with_checksum(bytes);
        return bytes;
    }

private:
    int below(std::size_t limit) { return static_cast<int>(engine_() % limit); }

    void change(Bytes& bytes) {
        if (bytes.size() < 16) return;
        const std::size_t in_header = 8 + engine_() % std::min(header_, bytes.size() - 8);
        switch (below(10)) {
            case 0: bytes.resize(engine_() % bytes.size()); break;
            case 1: bytes[engine_() % bytes.size()] ^= static_cast<std::uint8_t>(1 << below(8)); break;
            case 2: bytes[in_header] ^= static_cast<std::uint8_t>(1 << below(8)); break;
            case 3: {  // a hostile length of the header
                const std::uint64_t sizes[] = {0,     1,         header_ - 1, header_ + 1, bytes.size() - 8, bytes.size(),
                                               ~0ull, ~0ull - 8, 1ull << 63,  engine_()};
                std::memcpy(bytes.data(), &sizes[below(10)], 8);
                break;
            }
            case 4:
            case 5: digit(bytes, in_header); break;
            case 6: swap_names(bytes, in_header); break;
            case 7: bytes[in_header] = static_cast<std::uint8_t>("{}[]\",:\\0-e.tfn\xff"[below(17)]); break;
            case 8: {  // a real number that is not finite, or half of a word of signs
                const std::uint32_t numbers[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7C007C00, 0x7E00FE00};
                const std::size_t data = std::min(8 + header_, bytes.size() - 4);
                std::memcpy(&bytes[data + engine_() % (bytes.size() - 3 - data) / 4 * 4], &numbers[below(5)], 4);
                break;
            }
            default: {  // a piece moved within the header
                const std::size_t from = 8 + engine_() % std::min(header_, bytes.size() - 8), length = 1 + engine_() % 24;
                if (std::max(from, in_header) + length < bytes.size()) std::memmove(&bytes[in_header], &bytes[from], length);
            }
        }
    }

    // Another digit in place of the next one: sizes, offsets and shapes that are almost right.
    void digit(Bytes& bytes, std::size_t at) {
        while (at < bytes.size() && (bytes[at] < '0' || bytes[at] > '9')) ++at;
        if (at < bytes.size()) bytes[at] = static_cast<std::uint8_t>('0' + below(10));
    }

    // Two tensors or buffers change places: all names are short.
    void swap_names(Bytes& bytes, std::size_t at) {
        while (at + 3 < bytes.size() && !(bytes[at] == '"' && bytes[at + 1] == 't')) ++at;
        std::size_t other = 8 + engine_() % header_;
        while (other + 3 < bytes.size() && !(bytes[other] == '"' && bytes[other + 1] == 't')) ++other;
        if (std::max(at, other) + 3 < bytes.size()) std::swap(bytes[at + 2], bytes[other + 2]);
    }

    Bytes original_;
    std::size_t header_ = 0;
    std::mt19937_64 engine_;
};

}  // namespace frugalvit
