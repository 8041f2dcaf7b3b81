// Kernels over panels of 16 lanes, written once; each instruction set supplies the lanes `V` and includes this file.
//
// V has: Reals, Integers, Mask and Count (a running number of set bits); load, store, every (one value in all lanes), add, sub,
// multiply, fma, less, select, mask_bits, counting and a few more: see kernels_avx512.cpp. Everything here is in an unnamed
// namespace, so code compiled for one instruction set can never be linked into another.
#pragma once

#include "panel_bits.h"

namespace frugalvit {
namespace {

// The parameters of an activation for one panel. `twice` is -2 * gain: the product is -2 * (mismatches - depth / 2), exactly.
template <class V>
struct PanelActivation {
    typename V::Reals twice, bias, slope, move;

    PanelActivation(const Activation& after, int panel)
        : twice(V::multiply(V::load(after.gain.data() + panel * lanes), V::every(-2.0f))),
          bias(V::load(after.bias.data() + panel * lanes)),
          slope(V::load(after.slope.data() + panel * lanes)),
          move(V::load(after.move.data() + panel * lanes)) {}

    typename V::Reals bent(typename V::Reals v) const {
        return V::fma(v, V::select(V::less(v, V::every(0.0f)), slope, V::every(1.0f)), move);
    }
};

// mismatches - depth / 2, started at -(depth / 2) rounded down to an integer.
template <class V>
struct Centered {
    typename V::Integers start;

    explicit Centered(int depth) : start(V::every(static_cast<std::uint32_t>(-(depth / 2)))) {}

    template <bool odd>
    static typename V::Reals value(typename V::Integers total) {
        if constexpr (odd) return V::sub(V::to_real(total), V::every(0.5f));
        else return V::to_real(total);
    }
};

// Row by row, parameters loaded again for each: with parameters in registers the multiplications follow each other so closely
// that Intel's processors lower their clock when one-bit products run before and after.
template <class V>
void affine(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    const float *gain = step.gain.data(), *bias = step.bias.data();
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const float* from = x + row * stride;
        float* to = y + row * stride;
        for (int c = 0; c < stride; c += lanes)
            V::store(to + c, V::fma(V::load(from + c), V::load(gain + c), V::load(bias + c)));
    }
}

template <class V>
void add(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    const float *gain = step.gain.data(), *bias = step.bias.data();
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const float* from = x + row * stride;
        float* to = y + row * stride;
        for (int c = 0; c < stride; c += lanes) {
            const auto change = V::fma(V::load(from + c), V::load(gain + c), V::load(bias + c));
            V::store(to + c, V::add(change, V::load(to + c)));
        }
    }
}

template <class V>
void linear(const Linear& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int in = step.weights.in, out_panels = panels(step.weights.out), stride = padded(in), words32_in = words32(in);
    const Centered<V> centered(in);
    const std::uint32_t* weights = step.weights.panels.data();
    with_words<V>(in, [&](auto words) {
        for (int start = 0; start < rows.count; start += most_at_once) {
            const int first = rows.first + start, count = rows.count - start < most_at_once ? rows.count - start : most_at_once;
            std::uint32_t* bits = scratch.bits.data();
            in_blocks<V>(count, [&]<int R>(int begin) {
                sign_bits<V, R>(x + (first + begin) * stride, stride, step.threshold.data(), in, words, bits);
                bits += words32_in * block;
            });
            bits = scratch.bits.data();
            in_blocks<V>(count, [&]<int R>(int begin) {
                const float* from = x + (first + begin) * stride;
                float* to = y + (first + begin) * stride;
                for (int panel = 0; panel < out_panels; ++panel, from += lanes, to += lanes) {
                    const PanelActivation<V> after(step.after, panel);
                    with_counts<V, Differ, R>(
                        weights + panel * words * lanes, words, bits, centered.start, [&](int r, typename V::Integers total) {
                            const auto product = Centered<V>::template value<words.odd>(total);
                            const auto v = V::add(V::fma(after.twice, product, after.bias), V::load(from + r * stride));
                            V::store(to + r * stride, after.bent(v));
                        });
                }
                bits += words32_in * block;
            });
        }
    });
}

// P panels of outputs at a time, so that a number of x is read once for all of them, and some inputs at a time, whose weights
// stay in the cache for all rows; sums wait in y.
template <class V, int P>
inline void real_panels(const Real& step, int panel, const float* x, const float* positions, float* y, int rows) {
    constexpr int most_inputs = 256;
    const int stride = padded(step.out), in = step.in;
    const float *weights = step.panels.data() + panel * in * lanes, *bias = step.bias.data() + panel * lanes;
    for (int start = 0; start < in; start += most_inputs) {
        const int end = in - start < most_inputs ? in : start + most_inputs;
        in_blocks<V>(rows, [&]<int R>(int first) {
            const float *from = x + first * in, *place = positions + first * stride + panel * lanes;
            float* to = y + first * stride + panel * lanes;
            typename V::Reals sum[P][R];
            for (int p = 0; p < P; ++p)
                for (int r = 0; r < R; ++r) sum[p][r] = V::load(start ? to + r * stride + p * lanes : bias + p * lanes);
            for (int i = start; i < end; ++i) {
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const auto value = V::every(from[r * in + i]);
#pragma GCC unroll 2
                    for (int p = 0; p < P; ++p) sum[p][r] = V::fma(value, V::load(weights + (p * in + i) * lanes), sum[p][r]);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int p = 0; p < P; ++p) {
                    const int at = r * stride + p * lanes;
                    V::store(to + at, end == in ? V::add(sum[p][r], V::load(place + at)) : sum[p][r]);
                }
        });
    }
}

template <class V>
void real(const Real& step, const float* x, const float* positions, float* y, int rows) {
    int panel = 0;
    for (; panel + V::real_panels <= panels(step.out); panel += V::real_panels)
        real_panels<V, V::real_panels>(step, panel, x, positions, y, rows);
    for (; panel < panels(step.out); ++panel) real_panels<V, 1>(step, panel, x, positions, y, rows);
}

template <class V>
void head(const Real& step, const float* x, float* y, Rows wanted) {
    in_blocks<V>(wanted.count, [&]<int P>(int begin) {
        const int first = wanted.first + begin;
        typename V::Reals sum[P];
        for (int p = 0; p < P; ++p) sum[p] = V::load(step.bias.data() + (first + p) * lanes);
        for (int i = 0; i < step.in; ++i) {
            const auto value = V::every(x[i]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
                sum[p] = V::fma(value, V::load(step.panels.data() + ((first + p) * step.in + i) * lanes), sum[p]);
        }
        for (int p = 0; p < P; ++p) V::store(y + (first + p) * lanes, sum[p]);
    });
}

}  // namespace
}  // namespace frugalvit
