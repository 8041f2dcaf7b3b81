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
        in_blocks<V>(step.keys, [&]<int R>(int first) {
            sign_bits<V, R>(key + first * stride + begin, stride, step.key_threshold.data() + begin, width, AnyWords<false>{},
                            bits);
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

// Where the keys at the places of `count` queries begin.
inline void find_shortcuts(const Attention& step, int first, int count, int* shortcut) {
    const int stride = padded(step.width);
    if (step.side == 1) {
        for (int r = 0; r < count; ++r) shortcut[r] = (first + r) * stride;
        return;
    }
    int column = first % step.grid_width, inside = column % step.side, key = step.key_row(first);
    for (int r = 0; r < count; ++r) {
        shortcut[r] = key * stride;
        if (++inside == step.side) {
            inside = 0;
            ++key;
        }
        if (++column == step.grid_width) {
            column = 0;
            key = step.key_row(first + r + 1);
        }
    }
}

// A head's keys and values as pack_attention leaves them, and scratch memory: panel p of row r of scores is at
// (p * block + r) * lanes.
struct AttentionBlock {
    const std::uint32_t *keys, *values;
    std::uint32_t *bits, *chosen;
    float* scores;
};

// Which keys each of R queries attends to, as bits, and how many they are.
template <class V, int R, class Words>
inline void choose_keys(const Attention& step, Words head_words, const AttentionBlock space, int (&number)[R]) {
    const int last = panels(step.keys) - 1;
    const auto coarse = V::table(step.coarse.data()), fine = V::table(step.fine.data());
    const auto none = V::every(std::uint32_t{0});
    typename V::Reals sum[R];
    for (int r = 0; r < R; ++r) sum[r] = V::every(0.0f);
    const auto score = [&](int panel, auto present) {
        float* scores = space.scores + panel * block * lanes;
        with_counts<V, Differ, R>(
            space.keys + panel * head_words * lanes, head_words, space.bits, none, [&](int r, typename V::Integers total) {
                const auto weight = present(V::multiply(V::lookup(coarse, V::sixteenth(total)), V::lookup(fine, total)));
                sum[r] = V::add(sum[r], weight);
                V::store(scores + r * lanes, weight);
            });
    };
    for (int panel = 0; panel < last; ++panel) score(panel, [](typename V::Reals weight) { return weight; });
    score(last, [&](typename V::Reals weight) { return V::first(weight, step.keys - last * lanes); });
    for (int r = 0; r < R; ++r) {
        sum[r] = V::every(step.limit * V::sum_in_halves(sum[r]));
        number[r] = 0;
        if (last % 2 == 0) V::store(space.scores + ((last + 1) * block + r) * lanes, V::every(0.0f));
    }
    for (int word = 0; word <= last / 2; ++word) {
        const float *low = space.scores + 2 * word * block * lanes, *high = low + block * lanes;
        for (int r = 0; r < R; ++r) {
            const std::uint32_t bits = V::mask_bits(V::less(sum[r], V::load(low + r * lanes))) |
                                       V::mask_bits(V::less(sum[r], V::load(high + r * lanes))) << 16;
            space.chosen[word * block + r] = bits;
            number[r] += std::popcount(bits);
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
    const auto none = V::every(std::uint32_t{0});
    const auto run = [&](auto head_words, auto key_words) {
        in_blocks<V>(rows.count, [&]<int R>(int begin) {
            const int first = rows.first + begin;
            int shortcut[R], number[R];
            find_shortcuts(step, first, R, shortcut);
            for (int head = 0; head < step.heads; ++head) {
                const std::uint32_t* keys = packed + head * (layout.key_size + layout.value_size);
                const AttentionBlock space{keys, keys + layout.key_size, bits, chosen, scratch.reals.data()};
                const int channel = head * width;
                sign_bits<V, R>(query + first * stride + channel, stride, step.query_threshold.data() + channel, width,
                                head_words, bits);
                choose_keys<V, R>(step, head_words, space, number);
                for (int panel = 0; panel < layout.value_panels; ++panel) {
                    const int c = channel + panel * lanes;
                    const PanelActivation<V> after(step.after, c / lanes);
                    const auto gain = V::load(step.after.gain.data() + c);
                    const float* own = query + first * stride + c;
                    float* to = y + first * stride + c;
                    with_counts<V, Meet, R>(
                        space.values + panel * key_words * lanes, key_words, chosen, none,
                        [&](int r, typename V::Integers total) {
                            const auto product =
                                V::fma(V::to_real(total), V::every(-2.0f), V::every(static_cast<float>(number[r])));
                            auto v = V::add(V::fma(gain, product, after.bias), V::load(own + r * stride));
                            v = V::add(V::add(v, V::load(key + shortcut[r] + c)), V::load(value + shortcut[r] + c));
                            V::store(to + r * stride, after.bent(v));
                        });
                }
            }
        });
    };
    const AnyWords<false> head_words{layout.head_words}, key_words{layout.key_words};
    if (width == 64 && layout.key_words == 2) run(FixedWords<2>{}, FixedWords<2>{});
    else if (width == 64) run(FixedWords<2>{}, key_words);
    else run(head_words, key_words);
}

}  // namespace
}  // namespace frugalvit
