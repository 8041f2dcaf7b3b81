// The MLP and the merging convolution over panels of 16 lanes.
#pragma once

#include <cstring>

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

// Comparison masks of hidden panels are stored as they come, half of a word at a time.
inline void put_half(std::uint32_t* bits, int row, int panel, std::uint32_t mask) {
    const auto half = static_cast<std::uint16_t>(mask);
    std::memcpy(reinterpret_cast<char*>(bits + panel / 2 * block + row) + panel % 2 * sizeof half, &half, sizeof half);
}

// Up: hidden signs, and averages of neighboring hidden channels; the hidden numbers themselves are never stored.
template <class V, int R, class Words>
inline void expand_rows(const Mlp& step, Words words, const MlpBlock rows) {
    const int dim_panels = panels(step.dim), expand = step.expand, period = step.period / lanes;
    const Centered<V> centered(step.dim);
    const auto share = V::every(1.0f / static_cast<float>(expand));
    const std::uint32_t* weights = step.ordered_up.panels.data();
    const float* thresholds = step.ordered_threshold.data();
    int panel = 0;
    for (int c = 0; c < dim_panels; ++c) {
        const float* shortcut = rows.repeated + c % period * block * lanes;
        typename V::Reals sum[R];
        for (int r = 0; r < R; ++r) sum[r] = V::every(0.0f);
        for (int e = 0; e < expand; ++e, ++panel, shortcut += period * block * lanes) {
            const PanelActivation<V> after(step.ordered_after, panel);
            const auto threshold = V::load(thresholds + panel * lanes);
            with_counts<V, Differ, R>(
                weights + panel * words * lanes, words, rows.bits, centered.start, [&](int r, typename V::Integers total) {
                    const auto product = Centered<V>::template value<words.odd>(total);
                    const auto v = V::add(V::fma(after.twice, product, after.bias), V::load(shortcut + r * lanes));
                    const auto y = after.bent(v);
                    sum[r] = V::add(sum[r], y);
                    put_half(rows.hidden, r, panel, V::mask_bits(V::less(y, threshold)));
                });
        }
        for (int r = 0; r < R; ++r) V::store(rows.pooled + (c * block + r) * lanes, V::multiply(sum[r], share));
    }
}

template <class V, int R, bool odd>
inline void reduce_rows(const Mlp& step, const MlpBlock rows, float* y) {
    const int dim_panels = panels(step.dim), stride = padded(step.dim), words = words32(step.expand * stride);
    const Centered<V> centered(step.dim * step.expand);
    const std::uint32_t* weights = step.ordered_down.panels.data();
    for (int panel = 0; panel < dim_panels; ++panel) {
        const PanelActivation<V> after(step.down.after, panel);
        const float* shortcut = rows.pooled + panel * block * lanes;
        with_counts<V, Differ, R>(weights + panel * words * lanes, AnyWords<odd>{words}, rows.hidden, centered.start,
                                  [&](int r, typename V::Integers total) {
                                      const auto product = Centered<V>::template value<odd>(total);
                                      const auto v =
                                          V::add(V::fma(after.twice, product, after.bias), V::load(shortcut + r * lanes));
                                      V::store(y + r * stride + panel * lanes, after.bent(v));
                                  });
    }
}

template <class V>
void mlp(const Mlp& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int stride = padded(step.dim), hidden_panels = step.expand * panels(step.dim);
    const int repeated_panels = step.expand * step.period / lanes;
    const MlpBlock space(step, scratch);
    with_words<V>(step.dim, [&, space](auto words) {
        in_blocks<V>(rows.count, [&, space]<int R>(int begin) {
            const float* from = x + (rows.first + begin) * stride;
            float* to = y + (rows.first + begin) * stride;
            sign_bits<V, R>(from, stride, step.up.threshold.data(), step.dim, words, space.bits);
            for (int panel = 0; panel < repeated_panels; ++panel)
                V::template spread<R>(from + step.from[panel], stride, step.repeat.data() + panel * lanes, step.pairs[panel],
                                      space.repeated + panel * block * lanes);
            if (hidden_panels % 2)
                for (int r = 0; r < R; ++r) put_half(space.hidden, r, hidden_panels, 0);
            expand_rows<V, R>(step, words, space);
            if (step.dim * step.expand % 2) reduce_rows<V, R, true>(step, space, to);
            else reduce_rows<V, R, false>(step, space, to);
        });
    });
}

// Means are taken in lanes of `Plain`.
template <class V, class Plain = V>
void merge(const Merge& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int stride = padded(step.in), coarse_width = step.grid_width / 2, tap_words = 2 * words64(step.in);
    const int words = 4 * tap_words, out_stride = padded(step.out);
    const Centered<V> centered(4 * step.in);
    std::uint32_t* bits = scratch.bits.data();
    float* mean = scratch.reals.data();  // repeated to the width of the output
    in_blocks<V>(rows.count, [&]<int R>(int begin) {
        const int first = rows.first + begin;
        for (int r = 0; r < R; ++r) {
            const int corner = (first + r) / coarse_width * 2 * step.grid_width + (first + r) % coarse_width * 2;
            const float* taps[4];
            for (int tap = 0; tap < 4; ++tap) {
                taps[tap] = x + (corner + tap / 2 * step.grid_width + tap % 2) * stride;
                std::uint32_t* tap_bits = bits + tap * tap_words * block + r;
                tap_bits[(tap_words - 1) * block] = 0;
                sign_bits<V, 1>(taps[tap], stride, step.threshold.data(), step.in, AnyWords<false>{words}, tap_bits);
            }
            float* means = mean + r * out_stride;
            for (int c = 0; c < stride; c += lanes) {
                auto sum = Plain::add(Plain::load(taps[0] + c), Plain::load(taps[1] + c));
                sum = Plain::add(Plain::add(sum, Plain::load(taps[2] + c)), Plain::load(taps[3] + c));
                Plain::store(means + c, Plain::multiply(sum, Plain::every(0.25f)));
            }
            for (int copy = step.in; copy < step.out; copy += step.in)
                std::memcpy(means + copy, means, step.in * sizeof(float));
        }
        for (int panel = 0; panel < panels(step.out); ++panel) {
            const PanelActivation<V> after(step.after, panel);
            const float *shortcut = mean + panel * lanes,
                        *positions = step.positions.data() + first * out_stride + panel * lanes;
            float* to = y + first * out_stride + panel * lanes;
            with_counts<V, Differ, R>(
                step.weights.panels.data() + panel * words * lanes, AnyWords<false>{words}, bits, centered.start,
                [&](int r, typename V::Integers total) {
                    const auto v =
                        V::add(V::fma(after.twice, V::to_real(total), after.bias), V::load(shortcut + r * out_stride));
                    V::store(to + r * out_stride, V::add(after.bent(v), V::load(positions + r * out_stride)));
                });
        }
    });
}

}  // namespace
}  // namespace frugalvit
