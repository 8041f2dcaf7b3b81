// Lanes for AVX2: a panel is two registers; bits are counted by table, in bytes.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

struct Avx2 {
    struct Reals {
        __m256 low, high;
    };
    struct Integers {
        __m256i low, high;
    };
    using Mask = Reals;
    using Count = Integers;  // numbers of bits, in bytes
    using Table = Reals;

    static constexpr int rows = 4;         // that share a load of weights
    static constexpr int kept_words = 2;   // of weights in registers
    static constexpr int real_panels = 1;  // of a real product at a time

    static Reals load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
    static Integers load(const std::uint32_t* from) { return {half(from), half(from + 8)}; }
    static void store(float* to, Reals x) {
        _mm256_storeu_ps(to, x.low);
        _mm256_storeu_ps(to + 8, x.high);
    }
    static void store(std::uint32_t* to, Integers x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.high);
    }
    static Reals every(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static Integers every(std::uint32_t x) {
        return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
    }
    template <int R>
    static void spread(const float* x, int stride, const std::int32_t* index, int, float* to) {
        for (int r = 0; r < R; ++r, x += stride, to += lanes)
            for (int lane = 0; lane < lanes; ++lane) to[lane] = x[index[lane]];
    }

    static Reals add(Reals a, Reals b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static Reals sub(Reals a, Reals b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
    static Reals multiply(Reals a, Reals b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static Reals fma(Reals a, Reals b, Reals c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static Reals to_real(Integers x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }

    static Mask less(Reals a, Reals b) {
        return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
    }
    static Reals select(Mask mask, Reals yes, Reals no) {
        return {_mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high)};
    }
    static std::uint32_t mask_bits(Mask mask) {
        return static_cast<std::uint32_t>(_mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8);
    }
    static std::uint32_t mask_bits(Mask low, Mask high) { return mask_bits(low) | mask_bits(high) << 16; }
    static Reals first(Reals x, int count) {
        alignas(64) static constexpr float place[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return select(less(load(place), every(static_cast<float>(count))), x, every(0.0f));
    }

    static Integers exclusive_or(Integers a, Integers b) {
        return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
    }
    static Integers both(Integers a, Integers b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
    static Integers less_twice(Integers a, Integers b) { return {less_twice(a.low, b.low), less_twice(a.high, b.high)}; }
    static Integers sixteenth(Integers x) { return {_mm256_srli_epi32(x.low, 4), _mm256_srli_epi32(x.high, 4)}; }
    static void transpose(const std::uint16_t* from, std::uint32_t* to) {
        __m256i low = half(from), high = half(from + 16);
        for (int lane = lanes - 1; lane >= 0; --lane) {  // the sign of each number is its bit `lane`
            const __m256i signs = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
            to[lane] = static_cast<std::uint32_t>(_mm256_movemask_epi8(signs));
            low = _mm256_add_epi16(low, low);
            high = _mm256_add_epi16(high, high);
        }
    }

    static constexpr bool balances = false;
    static constexpr int most_counted = 31;  // a byte holds 31 * 8
    static Count begin_count(Integers) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static void count(Count& count, Integers x) {
        count.low = _mm256_add_epi8(count.low, bits_of_bytes(x.low));
        count.high = _mm256_add_epi8(count.high, bits_of_bytes(x.high));
    }
    static Integers end_count(Count count, Integers total) {
        return {_mm256_add_epi32(total.low, sum_bytes(count.low)), _mm256_add_epi32(total.high, sum_bytes(count.high))};
    }

    static __m128i widen(const std::uint8_t* four) {
        int bytes;
        std::memcpy(&bytes, four, sizeof bytes);
        return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes));
    }

    // Two outputs of three channels at a time, each in half a register: pairs of inputs are multiplied by 16-bit weights.
    static constexpr bool shrinks_pairs = true;
    static void shrink_pair(const std::int16_t* weights, int pairs, const std::uint8_t* first, const std::uint8_t* second,
                            std::uint8_t* to) {
        const __m256i front =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
        const __m256i back =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
        __m256i low = _mm256_set1_epi32(1 << (Taps::precision - 1)), high = _mm256_setzero_si256();
        const auto multiply = [&](__m256i pixels) {
            low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, half(weights)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, half(weights + 16)));
            weights += 32;
        };
        for (int pair = 0; pair < pairs; pair += 2, first += 12, second += 12) {
            const __m256i pixels =
                _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
                                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1);
            multiply(_mm256_shuffle_epi8(pixels, front));
            multiply(_mm256_shuffle_epi8(pixels, back));
        }
        const __m256i sum =
            _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, Taps::split_bits)), Taps::precision);
        const __m256i words = _mm256_packus_epi32(sum, sum), bytes = _mm256_packus_epi16(words, words);
        const std::uint32_t one = static_cast<std::uint32_t>(_mm256_cvtsi256_si32(bytes));
        const std::uint32_t two = static_cast<std::uint32_t>(_mm256_extract_epi32(bytes, 4));
        const std::uint64_t six = (one & 0xffffff) | std::uint64_t{two & 0xffffff} << 24;
        std::memcpy(to, &six, 6);
    }

    static Table table(const float* sixteen) { return load(sixteen); }
    // Of each half of the table one entry, then one of the two by bit 3 of the index: gathers are slower.
    static Reals lookup(Table table, Integers index) { return {lookup(table, index.low), lookup(table, index.high)}; }
    static float sum_in_halves(Reals x) {
        const __m256 eight = _mm256_add_ps(x.low, x.high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }

private:
    static __m256 lookup(Table table, __m256i index) {
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index), _mm256_permutevar8x32_ps(table.high, index),
                                _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }
    static __m256i less_twice(__m256i a, __m256i b) { return _mm256_sub_epi32(_mm256_sub_epi32(a, b), b); }
    static __m256i half(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
    static __m256i bits_of_bytes(__m256i x) {
        const __m256i counts =
            _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
        const __m256i nibble = _mm256_set1_epi8(15);
        const __m256i low = _mm256_shuffle_epi8(counts, _mm256_and_si256(x, nibble));
        const __m256i high = _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
        return _mm256_add_epi8(low, high);
    }
    static __m256i sum_bytes(__m256i x) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(x, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
    }
};

}  // namespace
}  // namespace frugalvit
