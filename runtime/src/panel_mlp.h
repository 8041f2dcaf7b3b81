// The MLP and the merging convolution over panels of 16 lanes.
#pragma once

#include "panel_kernels.h"

namespace frugalvit {
namespace {

// The rows of a block in scratch memory: panel p of row r of reals is at (p * block + r) * lanes.
struct MlpBlock {
    std::uint32_t *bits, *hidden;
    float *pooled, *repeated;

    MlpBlock(const Mlp& step, Scratch& scratch)
        : bits(scratch.bits.data()),
          hidden(bits + block * (words32(step.dim) + 1)),
          pooled(scratch.reals.data()),
          repeated(pooled + block * padded(step.dim)) {}
};

// Up: hidden signs, and averages of neighboring hidden channels; the hidden numbers themselves are never stored.
template <class V, int R, class Words>
inline void expand_rows(const Mlp& step, Words words, const MlpBlock& rows) {
    const int dim_panels = panels(step.dim), expand = step.expand, period = step.period / lanes;
    const Centered<V> centered(step.dim);
    const auto share = V::every(1.0f / static_cast<float>(expand));
    const std::uint32_t* weights = step.ordered_up.panels.data();
    const float* thresholds = step.ordered_threshold.data();
    for (int c = 0; c < dim_panels; ++c) {
        const float* shortcuts = rows.repeated + c % period * block * lanes;
        typename V::Reals sum[R];
        for (int r = 0; r < R; ++r) sum[r] = V::every(0.0f);
        for (int e = 0; e < expand; ++e) {
            const int panel = c * expand + e;
            typename V::Integers total[R];
            for (int r = 0; r < R; ++r) total[r] = centered.start;
            count_bits<V, Differ, R>(weights + panel * words * lanes, words, rows.bits, total);
            const PanelActivation<V> after(step.ordered_after, panel);
            const auto threshold = V::load(thresholds + panel * lanes);
            const float* shortcut = shortcuts + e * period * block * lanes;
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const auto v = V::add(V::fma(after.twice, centered.value(total[r]), after.bias), V::load(shortcut + r * lanes));
                const auto y = after.bent(v);
                sum[r] = V::add(sum[r], y);
                put_half(rows.hidden, r, panel, V::mask_bits(V::less(y, threshold)));
            }
        }
        for (int r = 0; r < R; ++r) V::store(rows.pooled + (c * block + r) * lanes, V::multiply(sum[r], share));
    }
}

template <class V, int R>
inline void reduce_rows(const Mlp& step, const MlpBlock& rows, float* y) {
    const int dim_panels = panels(step.dim), stride = padded(step.dim), words = words32(step.expand * stride);
    const Centered<V> centered(step.dim * step.expand);
    for (int panel = 0; panel < dim_panels; ++panel) {
        typename V::Integers total[R];
        for (int r = 0; r < R; ++r) total[r] = centered.start;
        count_bits<V, Differ, R>(step.ordered_down.panels.data() + panel * words * lanes, words, rows.hidden, total);
        const PanelActivation<V> after(step.down.after, panel);
        const float* shortcut = rows.pooled + panel * block * lanes;
        for (int r = 0; r < R; ++r) {
            const auto v = V::add(V::fma(after.twice, centered.value(total[r]), after.bias), V::load(shortcut + r * lanes));
            V::store(y + r * stride + panel * lanes, after.bent(v));
        }
    }
}

template <class V>
void mlp(const Mlp& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int stride = padded(step.dim), hidden_panels = step.expand * panels(step.dim);
    const int repeated_panels = step.expand * step.period / lanes;
    const MlpBlock space(step, scratch);
    with_words(words32(step.dim), [&](auto words) {
        in_blocks(rows.count, [&]<int R>(int begin) {
            const float* from = x + (rows.first + begin) * stride;
            sign_bits<V, R>(from, stride, step.up.threshold.data(), step.dim, space.bits);
            for (int panel = 0; panel < repeated_panels; ++panel) {
                typename V::Reals out[R];
                V::template spread<R>(from + step.from[panel], stride, step.repeat.data() + panel * lanes, step.pairs[panel],
                                      out);
                for (int r = 0; r < R; ++r) V::store(space.repeated + (panel * block + r) * lanes, out[r]);
            }
            if (hidden_panels % 2)
                for (int r = 0; r < R; ++r) put_half(space.hidden, r, hidden_panels, 0);
            expand_rows<V, R>(step, words, space);
            reduce_rows<V, R>(step, space, y + (rows.first + begin) * stride);
        });
    });
}

template <class V>
void merge(const Merge& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int stride = padded(step.in), coarse_width = step.grid_width / 2, tap_words = 2 * words64(step.in);
    const int words = 4 * tap_words, out_stride = padded(step.out);
    const Centered<V> centered(4 * step.in);
    std::uint32_t* bits = scratch.bits.data();
    float* mean = scratch.reals.data();  // repeated to the width of the output
    in_blocks(rows.count, [&]<int R>(int begin) {
        const int first = rows.first + begin;
        for (int r = 0; r < R; ++r) {
            const int corner = (first + r) / coarse_width * 2 * step.grid_width + (first + r) % coarse_width * 2;
            const float* taps[4];
            for (int tap = 0; tap < 4; ++tap) {
                taps[tap] = x + (corner + tap / 2 * step.grid_width + tap % 2) * stride;
                std::uint32_t* tap_bits = bits + tap * tap_words * block + r;
                tap_bits[(tap_words - 1) * block] = 0;
                sign_bits<V, 1>(taps[tap], stride, step.threshold.data(), step.in, tap_bits);
            }
            float* means = mean + r * out_stride;
            for (int c = 0; c < stride; c += lanes) {
                const auto sum = V::add(V::add(V::add(V::load(taps[0] + c), V::load(taps[1] + c)), V::load(taps[2] + c)),
                                        V::load(taps[3] + c));
                V::store(means + c, V::multiply(sum, V::every(0.25f)));
            }
            for (int copy = step.in; copy < step.out; copy += step.in)
                std::memcpy(means + copy, means, step.in * sizeof(float));
        }
        for (int panel = 0; panel < panels(step.out); ++panel) {
            typename V::Integers total[R];
            for (int r = 0; r < R; ++r) total[r] = centered.start;
            count_bits<V, Differ, R>(step.weights.panels.data() + panel * words * lanes, words, bits, total);
            const PanelActivation<V> after(step.after, panel);
            for (int r = 0; r < R; ++r) {
                const int at = (first + r) * out_stride + panel * lanes;
                const auto v = V::add(V::fma(after.twice, centered.value(total[r]), after.bias),
                                      V::load(mean + r * out_stride + panel * lanes));
                V::store(y + at, V::add(after.bent(v), V::load(step.positions.data() + at)));
            }
        }
    });
}

}  // namespace
}  // namespace frugalvit
