// One-bit attention over panels of 16 lanes: keys stand in lanes for the scores, channels for the values.
#pragma once

#include <bit>

#include "panel_kernels.h"

namespace frugalvit {
namespace {

struct AttentionLayout {
    int head_words, key_panels, key_words, value_panels;
    int key_size, value_size;  // of one head

    explicit AttentionLayout(const Attention& step)
        : head_words(words32(step.head_width())),
          key_panels(panels(step.keys)),
          key_words(words32(step.keys)),
          value_panels(panels(step.head_width())),
          key_size(key_panels * head_words * lanes),
          value_size(value_panels * key_words * lanes) {}
};

// A panel of the vector kernels lies within one head; other widths are left to the definition.
inline bool fits_panels(const Attention& step) { return step.head_width() % lanes == 0; }

template <class V>
void pack_attention(const Attention& step, const float* key, const float* value, std::uint32_t* packed, Rows heads,
                    Scratch& scratch) {
    if (!fits_panels(step)) return;
    const AttentionLayout layout(step);
    const int stride = padded(step.width), width = step.head_width();
    std::uint32_t* bits = scratch.bits.data();
    for (int head = heads.first; head < heads.first + heads.count; ++head) {
        const int begin = head * width;
        std::uint32_t* keys = packed + head * (layout.key_size + layout.value_size);
        std::uint32_t* values = keys + layout.key_size;
        in_blocks(step.keys, [&]<int R>(int first) {
            sign_bits<V, R>(key + first * stride + begin, stride, step.key_threshold.data() + begin, width, bits);
            for (int word = 0; word < layout.head_words; ++word)
                for (int r = 0; r < R; ++r) {
                    const int j = first + r;
                    keys[(j / lanes * layout.head_words + word) * lanes + j % lanes] = bits[word * block + r];
                }
        });
        for (int panel = 0; panel < layout.value_panels; ++panel) {
            const int c = begin + panel * lanes;
            const auto threshold = V::load(step.value_threshold.data() + c);
            for (int word = 0; word < layout.key_words; ++word) {
                auto column = V::every(std::uint32_t{0});
                for (int bit = 0; bit < 32 && word * 32 + bit < step.keys; ++bit)
                    column = V::set_bit(column, V::less(V::load(value + (word * 32 + bit) * stride + c), threshold), bit);
                V::store(values + (panel * layout.key_words + word) * lanes, column);
            }
        }
    }
}

template <class V>
void attention(const Attention& step, const float* query, const float* key, const float* value, const std::uint32_t* packed,
               float* y, Rows rows, Scratch& scratch) {
    if (!fits_panels(step)) return reference_kernels().attention(step, query, key, value, packed, y, rows, scratch);
    const AttentionLayout layout(step);
    const int stride = padded(step.width), width = step.head_width();
    std::uint32_t *bits = scratch.bits.data(), *chosen = bits + block * (layout.head_words + 1);
    float* weights = scratch.reals.data();
    const auto coarse = V::table(step.coarse.data()), fine = V::table(step.fine.data());
    const int last = layout.key_panels - 1;
    with_words(layout.head_words, [&](auto head_words) {
        in_blocks(rows.count, [&]<int R>(int begin) {
            const int first = rows.first + begin;
            int shortcut[R];
            for (int r = 0; r < R; ++r) shortcut[r] = step.key_row(first + r) * stride;
            for (int head = 0; head < step.heads; ++head) {
                const std::uint32_t* keys = packed + head * (layout.key_size + layout.value_size);
                const std::uint32_t* values = keys + layout.key_size;
                const int channel = head * width;
                sign_bits<V, R>(query + first * stride + channel, stride, step.query_threshold.data() + channel, width, bits);
                typename V::Reals sum[R];
                for (int r = 0; r < R; ++r) sum[r] = V::every(0.0f);
                for (int panel = 0; panel <= last; ++panel) {
                    typename V::Integers total[R];
                    for (int r = 0; r < R; ++r) total[r] = V::every(std::uint32_t{0});
                    count_bits<V, Differ, R>(keys + panel * head_words * lanes, head_words, bits, total);
                    for (int r = 0; r < R; ++r) {
                        auto weight = V::multiply(V::lookup(coarse, V::sixteenth(total[r])), V::lookup(fine, total[r]));
                        if (panel == last) weight = V::first(weight, step.keys - panel * lanes);
                        sum[r] = V::add(sum[r], weight);
                        V::store(weights + (panel * block + r) * lanes, weight);
                    }
                }
                for (int r = 0; r < R; ++r) sum[r] = V::every(step.limit * V::sum_in_halves(sum[r]));
                for (int panel = 0; panel <= last; ++panel)
                    for (int r = 0; r < R; ++r)
                        put_half(chosen, r, panel,
                                 V::mask_bits(V::less(sum[r], V::load(weights + (panel * block + r) * lanes))));
                if (layout.key_panels % 2)
                    for (int r = 0; r < R; ++r) put_half(chosen, r, layout.key_panels, 0);
                typename V::Reals number[R];
                for (int r = 0; r < R; ++r) {
                    int count = 0;
                    for (int word = 0; word < layout.key_words; ++word) count += std::popcount(chosen[word * block + r]);
                    number[r] = V::every(static_cast<float>(count));
                }
                for (int panel = 0; panel < layout.value_panels; ++panel) {
                    typename V::Integers total[R];
                    for (int r = 0; r < R; ++r) total[r] = V::every(std::uint32_t{0});
                    count_bits<V, Meet, R>(values + panel * layout.key_words * lanes, layout.key_words, chosen, total);
                    const int c = channel + panel * lanes;
                    const PanelActivation<V> after(step.after, c / lanes);
                    const auto gain = V::load(step.after.gain.data() + c);
                    for (int r = 0; r < R; ++r) {
                        const int at = (first + r) * stride + c;
                        const auto product = V::fma(V::to_real(total[r]), V::every(-2.0f), number[r]);
                        auto v = V::add(V::fma(gain, product, after.bias), V::load(query + at));
                        v = V::add(V::add(v, V::load(key + shortcut[r] + c)), V::load(value + shortcut[r] + c));
                        V::store(y + at, after.bent(v));
                    }
                }
            }
        });
    });
}

}  // namespace
}  // namespace frugalvit
