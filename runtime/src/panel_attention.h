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

// Of each panel of channels the signs of all keys, a key's in one number; then the same of values.
template <class V>
void sign_attention(const Attention& step, const float* key, const float* value, std::uint16_t* signs, Rows keys) {
    if (!fits_panels(step)) return;
    const int stride = padded(step.width), count = panels(step.width), places = 32 * words32(step.keys);
    const auto sign = [=](const float* x, const float* threshold, std::uint16_t* to) {
        for (int panel = 0; panel < count; ++panel, x += lanes, threshold += lanes, to += places)
            *to = static_cast<std::uint16_t>(V::mask_bits(V::less(V::load(x), V::load(threshold))));
    };
    for (int row = keys.first; row < keys.first + keys.count; ++row) {
        sign(key + row * stride, step.key_threshold.data(), signs + row);
        sign(value + row * stride, step.value_threshold.data(), signs + count * places + row);
    }
}

// Signs in places without a key are whatever was there: such keys are never chosen.
template <class V>
void pack_attention(const Attention& step, const std::uint16_t* signs, std::uint32_t* packed) {
    if (!fits_panels(step)) return;
    const AttentionLayout layout(step);
    const int count = panels(step.width), of_head = layout.value_panels, places = 32 * layout.key_words;
    const std::uint16_t *key = signs, *value = signs + count * places;
    for (int head = 0; head < step.heads; ++head, packed += layout.key_size + layout.value_size) {
        for (int panel = 0; panel < of_head; ++panel, key += places) {
            std::uint32_t* to = packed + panel / 2 * lanes;
            for (int j = 0; j < layout.key_panels; ++j, to += layout.head_words * lanes)
                for (int lane = 0; lane < lanes; ++lane) {
                    const std::uint32_t half = key[j * lanes + lane];
                    to[lane] = panel % 2 ? to[lane] | half << 16 : half;
                }
        }
        std::uint32_t* to = packed + layout.key_size;
        for (int word = 0; word < of_head * layout.key_words; ++word, value += 32, to += lanes) V::transpose(value, to);
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
inline void choose_keys(const Attention& step, Words head_words, const AttentionBlock space, std::uint32_t (&number)[R]) {
    const int last = panels(step.keys) - 1, rest = step.keys - last * lanes;
    const auto coarse = V::table(step.coarse.data()), fine = V::table(step.fine.data());
    const auto none = V::every(std::uint32_t{0});
    typename V::Reals sum[R];
#pragma GCC unroll 8
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
    score(last, [rest](typename V::Reals weight) { return V::first(weight, rest); });
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        sum[r] = V::every(step.limit * V::sum_in_halves(sum[r]));
        number[r] = 0;
        if (last % 2 == 0) V::store(space.scores + ((last + 1) * block + r) * lanes, V::every(0.0f));
    }
    for (int word = 0; word <= last / 2; ++word) {
        const float *low = space.scores + 2 * word * block * lanes, *high = low + block * lanes;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const std::uint32_t bits =
                V::mask_bits(V::less(sum[r], V::load(low + r * lanes)), V::less(sum[r], V::load(high + r * lanes)));
            space.chosen[word * block + r] = bits;
            number[r] += static_cast<std::uint32_t>(std::popcount(bits));
        }
    }
}

// The same for four panels of keys in heads of 64 channels: keys and scores stay in registers.
template <class V, int R>
inline void choose_few_keys(const Attention& step, const AttentionBlock space, std::uint32_t (&number)[R]) {
    constexpr int count = 4, words = 2;
    const int rest = step.keys - (count - 1) * lanes;
    const float limit = step.limit;
    const auto coarse = V::table(step.coarse.data()), fine = V::table(step.fine.data());
    typename V::Integers keys[count * words];
#pragma GCC unroll 8
    for (int i = 0; i < count * words; ++i) keys[i] = V::load(space.keys + i * lanes);
#pragma GCC unroll 1
    for (int r = 0; r < R; ++r) {
        const auto low = V::every(space.bits[r]), high = V::every(space.bits[block + r]);
        typename V::Reals weight[count];
#pragma GCC unroll 4
        for (int panel = 0; panel < count; ++panel) {
            auto total = V::begin_count(V::every(std::uint32_t{0}));
            V::count(total, V::exclusive_or(keys[2 * panel], low));
            V::count(total, V::exclusive_or(keys[2 * panel + 1], high));
            const auto found = V::end_count(total, V::every(std::uint32_t{0}));
            weight[panel] = V::multiply(V::lookup(coarse, V::sixteenth(found)), V::lookup(fine, found));
        }
        weight[3] = V::first(weight[3], rest);
        const auto sum = V::add(V::add(V::add(weight[0], weight[1]), weight[2]), weight[3]);
        const auto least = V::every(limit * V::sum_in_halves(sum));
        const std::uint32_t front = V::mask_bits(V::less(least, weight[0]), V::less(least, weight[1]));
        const std::uint32_t back = V::mask_bits(V::less(least, weight[2]), V::less(least, weight[3]));
        space.chosen[r] = front;
        space.chosen[block + r] = back;
        number[r] = static_cast<std::uint32_t>(std::popcount(front) + std::popcount(back));
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
            int shortcut[R];
            std::uint32_t number[R];
            find_shortcuts(step, first, R, shortcut);
            for (int head = 0; head < step.heads; ++head) {
                const std::uint32_t* keys = packed + head * (layout.key_size + layout.value_size);
                const AttentionBlock space{keys, keys + layout.key_size, bits, chosen, scratch.reals.data()};
                const int channel = head * width;
                sign_bits<V, R>(query + first * stride + channel, stride, step.query_threshold.data() + channel, width,
                                head_words, bits);
                if constexpr (V::kept_words >= 8 && head_words.kept == 2 && key_words.kept == 2)
                    choose_few_keys<V, R>(step, space, number);
                else choose_keys<V, R>(step, head_words, space, number);
                for (int panel = 0; panel < layout.value_panels; ++panel) {
                    const int c = channel + panel * lanes;
                    const PanelActivation<V> after(step.after, c / lanes);
                    const auto gain = V::load(step.after.gain.data() + c);
                    const float* own = query + first * stride + c;
                    float* to = y + first * stride + c;
                    with_counts<V, Meet, R>(space.values + panel * key_words * lanes, key_words, chosen, none,
                                            [&](int r, typename V::Integers total) {
                                                const auto product = V::to_real(V::less_twice(V::every(number[r]), total));
                                                auto v = V::add(V::fma(gain, product, after.bias), V::load(own + r * stride));
                                                v = V::add(V::add(v, V::load(key + shortcut[r] + c)),
                                                           V::load(value + shortcut[r] + c));
                                                V::store(to + r * stride, after.bent(v));
                                            });
                }
            }
        });
    };
    const AnyWords<false> head_words{layout.head_words}, key_words{layout.key_words};
    if (width == 64 && layout.key_panels == 4) run(FixedWords<2>{}, FixedWords<2>{});
    else if (width == 64) run(FixedWords<2>{}, key_words);
    else run(head_words, key_words);
}

}  // namespace
}  // namespace frugalvit
