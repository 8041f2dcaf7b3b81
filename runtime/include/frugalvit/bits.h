// One-bit numbers: bit 1 stands for -1, bit 0 for +1, bits past the end of a row are 0.
//
// A row of n numbers is stored in 64-bit little-endian words, number i in bit i % 64 of word i / 64. The kernels read the same
// bytes as 32-bit halves, the low half first, so that one half fills one lane of a vector register.
#pragma once

#include <bit>
#include <cstdint>

namespace frugalvit {

static_assert(std::endian::native == std::endian::little, "packed words are little-endian");

inline constexpr int lanes = 16;  // channels or keys side by side in a panel; rows of floats are padded to a multiple of it

constexpr int words64(int numbers) { return (numbers + 63) / 64; }
constexpr int words32(int numbers) { return (numbers + 31) / 32; }
constexpr int padded(int columns) { return (columns + lanes - 1) / lanes * lanes; }
constexpr int panels(int columns) { return (columns + lanes - 1) / lanes; }

constexpr bool is_minus(const std::uint64_t* row, int index) { return row[index / 64] >> (index % 64) & 1; }

// sum of a[i] * b[i] over n numbers of ±1: n - 2 * popcount(a XOR b)
constexpr int dot(const std::uint64_t* a, const std::uint64_t* b, int n) {
    int mismatches = 0;
    for (int word = 0; word < words64(n); ++word) mismatches += std::popcount(a[word] ^ b[word]);
    return n - 2 * mismatches;
}

}  // namespace frugalvit
