// Resizing of pixels, four channels or many columns at a time.
#pragma once

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

typedef std::int32_t FourSums __attribute__((vector_size(16)));

inline std::uint8_t clipped(std::int32_t sum) {
    sum >>= Taps::precision;
    return static_cast<std::uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

// Three channels and the byte behind them, which belongs to the next pixel.
template <class V>
inline void shrink_colors(const Taps& taps, const std::uint8_t* from, std::uint8_t* to, int first, int outputs) {
    for (int x = first; x < outputs; ++x) {
        const std::int32_t* weights = taps.weights.data() + static_cast<std::size_t>(x) * taps.count;
        const std::uint8_t* pixel = from + taps.begin[x] * 3;
        FourSums sum = FourSums{} + (1 << (Taps::precision - 1));
        for (int i = 0; i < taps.count; ++i) sum += FourSums(V::widen(pixel + 3 * i)) * weights[i];
        sum >>= Taps::precision;
        sum = sum < 0 ? FourSums{} : sum;
        sum = sum > 255 ? FourSums{} + 255 : sum;
        for (int c = 0; c < 3; ++c) to[3 * x + c] = static_cast<std::uint8_t>(sum[c]);
    }
}

template <class V>
void shrink(const Taps& taps, const std::uint8_t* from, std::uint8_t* to, int outputs, int channels) {
    if (channels != 3) return reference_kernels().shrink(taps, from, to, outputs, channels);
    int done = 0;
    if constexpr (V::shrinks_pairs)
        for (; done + 2 <= outputs; done += 2)
            V::shrink_pair(taps.split.data() + static_cast<std::size_t>(done) * taps.split_size(), taps.pairs,
                           from + taps.begin[done] * 3, from + taps.begin[done + 1] * 3, to + done * 3);
    shrink_colors<V>(taps, from, to, done, outputs);
}

template <class V>
void blend(const std::int32_t* weights, int count, const std::uint8_t* from, std::uint8_t* to, int columns) {
    constexpr int most = 64;
    int x = 0;
    for (; x + most <= columns; x += most) {
        std::int32_t sum[most];
        for (int j = 0; j < most; ++j) sum[j] = 1 << (Taps::precision - 1);
        for (int i = 0; i < count; ++i)
            for (int j = 0; j < most; ++j) sum[j] += from[i * columns + x + j] * weights[i];
        for (int j = 0; j < most; ++j) to[x + j] = clipped(sum[j]);
    }
    for (; x < columns; ++x) {
        std::int32_t sum = 1 << (Taps::precision - 1);
        for (int i = 0; i < count; ++i) sum += from[i * columns + x] * weights[i];
        to[x] = clipped(sum);
    }
}

}  // namespace
}  // namespace frugalvit
