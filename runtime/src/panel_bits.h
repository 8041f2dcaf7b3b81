// Signs as words of bits, and counting in how many bits they differ from weights: what all one-bit products share.
#pragma once

#include <cstdint>
#include <type_traits>

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

inline constexpr int block = 8;          // rows that stand side by side in scratch memory
inline constexpr int most_at_once = 32;  // rows whose signs are taken before their products

template <int R, class Work>
inline void with_rows(int count, int first, Work& work) {
    if constexpr (R > 1)
        if (count != R) return with_rows<R - 1>(count, first, work);
    work.template operator()<R>(first);
}

// Calls work(first) with 1 to V::rows rows as a template argument, as evenly as rows allow: they share each load of weights.
template <class V, class Work>
inline void in_blocks(int rows, Work&& work) {
    static_assert(V::rows <= block);
    const int blocks = (rows + V::rows - 1) / V::rows;
    for (int i = 0, first = 0; i < blocks; ++i) {
        const int count = (rows - first + blocks - i - 1) / (blocks - i);
        with_rows<V::rows>(count, first, work);
        first += count;
    }
}

// Word w of row r of a block of bits is bits[w * block + r]; every other word is inverted where words are balanced.
template <class V, int R, class Words>
inline void sign_bits(const float* x, int stride, const float* threshold, int columns, Words, std::uint32_t* bits) {
    const int count = panels(columns);
    for (int r = 0; r < R; ++r, x += stride, ++bits) {
        std::uint32_t *word = bits, inverted = 0;
        int c = 0;
        for (; c + 2 * lanes <= count * lanes; c += 2 * lanes, word += block) {
            *word = inverted ^ V::mask_bits(V::less(V::load(x + c), V::load(threshold + c)),
                                            V::less(V::load(x + c + lanes), V::load(threshold + c + lanes)));
            if constexpr (Words::balanced) inverted = ~inverted;
        }
        if (count % 2) *word = V::mask_bits(V::less(V::load(x + c), V::load(threshold + c)));
    }
}

struct Differ {  // products of ±1 and ±1
    template <class V>
    static auto apply(typename V::Integers a, typename V::Integers b) {
        return V::exclusive_or(a, b);
    }
};

struct Meet {  // products of {0, 1} and ±1
    template <class V>
    static auto apply(typename V::Integers a, typename V::Integers b) {
        return V::both(a, b);
    }
};

// Bits in which R rows and the lanes of a panel differ or meet, added to `total`.
template <class V, class How, int R>
inline void count_bits(const std::uint32_t* panel, int words, const std::uint32_t* bits, typename V::Integers (&total)[R]) {
    for (int start = 0; start < words; start += V::most_counted) {
        const int end = words - start < V::most_counted ? words : start + V::most_counted;
        typename V::Count count[R];
        for (int r = 0; r < R; ++r) count[r] = V::begin_count(total[r]);
        for (int word = start; word < end; ++word) {
            const auto weight = V::load(panel + word * lanes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) V::count(count[r], How::template apply<V>(weight, V::every(bits[word * block + r])));
        }
        for (int r = 0; r < R; ++r) total[r] = V::end_count(count[r], total[r]);
    }
}

// How many words a row of bits has: known to the compiler, so that the weights of a panel stay in registers, or not. Where
// words are balanced, half of them count what agrees, downwards: the sum is that of mismatches less half the depth.
template <int N, bool Balanced = false>
struct FixedWords {
    static constexpr int kept = N;
    static constexpr bool odd = false, balanced = Balanced;
    constexpr operator int() const { return N; }
};

template <bool Odd>
struct AnyWords {
    static constexpr int kept = 0;
    static constexpr bool odd = Odd, balanced = false;  // odd: of the numbers in a row
    int count;
    constexpr operator int() const { return count; }
};

template <class V, class Work>
inline void with_words(int depth, Work&& work) {
    if constexpr (V::kept_words >= 8)
        if (depth == 256) return work(FixedWords<8, V::balances>{});
    if constexpr (V::kept_words >= 4)
        if (depth == 128) return work(FixedWords<4, V::balances>{});
    if (depth == 64) work(FixedWords<2, V::balances>{});
    else if (depth % 2) work(AnyWords<true>{words32(depth)});
    else work(AnyWords<false>{words32(depth)});
}

// Calls each(r, bits) for R rows, where bits are those in which the row and the lanes of a panel differ or meet, plus `start`.
template <class V, class How, int R, class Words, class Each>
inline void with_counts(const std::uint32_t* panel, Words words, const std::uint32_t* bits, typename V::Integers start,
                        Each&& each) {
    static_assert(!Words::balanced || std::is_same_v<How, Differ>);  // and `start` is minus half the depth
    if constexpr (Words::kept > 0) {
        typename V::Integers weight[Words::kept];
#pragma GCC unroll 8
        for (int word = 0; word < Words::kept; ++word) weight[word] = V::load(panel + word * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            auto count = V::begin_count(Words::balanced ? V::every(std::uint32_t{0}) : start);
#pragma GCC unroll 8
            for (int word = 0; word < Words::kept; ++word) {
                const auto found = How::template apply<V>(weight[word], V::every(bits[word * block + r]));
                if constexpr (Words::balanced)
                    if (word % 2) {
                        V::count_down(count, found);
                        continue;
                    }
                V::count(count, found);
            }
            each(r, V::end_count(count, start));
        }
    } else {
        typename V::Integers total[R];
        for (int r = 0; r < R; ++r) total[r] = start;
        count_bits<V, How, R>(panel, words, bits, total);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) each(r, total[r]);
    }
}

}  // namespace
}  // namespace frugalvit
