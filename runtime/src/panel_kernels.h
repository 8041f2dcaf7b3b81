// Kernels over panels of 16 lanes, written once; each instruction set supplies the lanes `V` and includes this file.
//
// V has: Reals, Integers, Mask and Count (a running number of set bits); load, store, every (one value in all lanes), add, sub,
// multiply, fma, less, select, mask_bits, counting and a few more: see kernels_avx512.cpp. Everything here is in an unnamed
// namespace, so code compiled for one instruction set can never be linked into another.
#pragma once

#include <cstring>
#include <type_traits>

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

inline constexpr int block = 8;  // rows that share one load of weights; scratch memory holds their numbers side by side

// Calls work(first) with 1 to 8 rows as a template argument, as evenly as rows allow.
template <class Work>
inline void in_blocks(int rows, Work&& work) {
    const int blocks = (rows + block - 1) / block;
    for (int i = 0, first = 0; i < blocks; ++i) {
        const int count = (rows - first + blocks - i - 1) / (blocks - i);
        switch (count) {
            case 1: work.template operator()<1>(first); break;
            case 2: work.template operator()<2>(first); break;
            case 3: work.template operator()<3>(first); break;
            case 4: work.template operator()<4>(first); break;
            case 5: work.template operator()<5>(first); break;
            case 6: work.template operator()<6>(first); break;
            case 7: work.template operator()<7>(first); break;
            default: work.template operator()<8>(first); break;
        }
        first += count;
    }
}

// Word w of row r of a block of bits is bits[w * block + r]. Comparison masks come 16 bits at a time, half of a word.
inline void put_half(std::uint32_t* bits, int row, int panel, std::uint32_t mask) {
    const auto half = static_cast<std::uint16_t>(mask);
    std::memcpy(reinterpret_cast<char*>(bits + panel / 2 * block + row) + panel % 2 * sizeof half, &half, sizeof half);
}

template <class V, int R>
inline void sign_bits(const float* x, int stride, const float* threshold, int columns, std::uint32_t* bits) {
    for (int panel = 0; panel < panels(columns); ++panel) {
        const auto limit = V::load(threshold + panel * lanes);
        for (int r = 0; r < R; ++r)
            put_half(bits, r, panel, V::mask_bits(V::less(V::load(x + r * stride + panel * lanes), limit)));
    }
    if (panels(columns) % 2)
        for (int r = 0; r < R; ++r) put_half(bits, r, panels(columns), 0);
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

// Calls work with the number of words as a type where rows are short, so that the loop over words disappears.
template <class Work>
inline void with_words(int words, Work&& work) {
    if (words == 2) work(std::integral_constant<int, 2>{});
    else if (words == 4) work(std::integral_constant<int, 4>{});
    else work(words);
}

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
    typename V::Reals rest;
    bool odd;

    explicit Centered(int depth)
        : start(V::every(static_cast<std::uint32_t>(-(depth / 2)))), rest(V::every(0.5f)), odd(depth % 2 != 0) {}

    typename V::Reals value(typename V::Integers total) const {
        const auto real = V::to_real(total);
        return odd ? V::sub(real, rest) : real;
    }
};

template <class V>
void affine(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    for (int c = 0; c < stride; c += lanes) {
        const auto gain = V::load(step.gain.data() + c), bias = V::load(step.bias.data() + c);
        for (int row = rows.first; row < rows.first + rows.count; ++row)
            V::store(y + row * stride + c, V::fma(V::load(x + row * stride + c), gain, bias));
    }
}

template <class V>
void add(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    for (int c = 0; c < stride; c += lanes) {
        const auto gain = V::load(step.gain.data() + c), bias = V::load(step.bias.data() + c);
        for (int row = rows.first; row < rows.first + rows.count; ++row) {
            float* at = y + row * stride + c;
            V::store(at, V::add(V::fma(V::load(x + row * stride + c), gain, bias), V::load(at)));
        }
    }
}

template <class V>
void linear(const Linear& step, const float* x, float* y, Rows rows, Scratch& scratch) {
    const int in = step.weights.in, out_panels = panels(step.weights.out), stride = padded(in);
    const Centered<V> centered(in);
    std::uint32_t* bits = scratch.bits.data();
    const std::uint32_t* weights = step.weights.panels.data();
    with_words(words32(in), [&](auto words) {
        in_blocks(rows.count, [&]<int R>(int begin) {
            const int at = (rows.first + begin) * stride;
            sign_bits<V, R>(x + at, stride, step.threshold.data(), in, bits);
            for (int panel = 0; panel < out_panels; ++panel) {
                typename V::Integers total[R];
                for (int r = 0; r < R; ++r) total[r] = centered.start;
                count_bits<V, Differ, R>(weights + panel * words * lanes, words, bits, total);
                const PanelActivation<V> after(step.after, panel);
                const float* from = x + at + panel * lanes;
                float* to = y + at + panel * lanes;
                for (int r = 0; r < R; ++r) {
                    const auto v =
                        V::add(V::fma(after.twice, centered.value(total[r]), after.bias), V::load(from + r * stride));
                    V::store(to + r * stride, after.bent(v));
                }
            }
        });
    });
}

template <class V>
void pool(const Pool& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns), coarse_width = step.grid_width / step.side;
    const auto share = V::every(1.0f / static_cast<float>(step.side * step.side));
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int top = row / coarse_width * step.side, left = row % coarse_width * step.side;
        for (int c = 0; c < stride; c += lanes) {
            auto sum = V::every(0.0f);
            for (int i = 0; i < step.side; ++i) {
                const float* from = x + ((top + i) * step.grid_width + left) * stride + c;
                for (int j = 0; j < step.side; ++j) sum = V::add(sum, V::load(from + j * stride));
            }
            V::store(y + row * stride + c, V::multiply(sum, share));
        }
    }
}

template <class V>
void cross(const Cross& step, const float* z, float* x, Rows rows) {
    const int stride = padded(step.columns), down = step.grid_width * stride;
    const auto zero = V::every(0.0f);
    for (int c = 0; c < stride; c += lanes) {
        const auto center = V::load(step.center.data() + c), bias = V::load(step.bias.data() + c);
        const auto near_rows = V::load(step.near_rows.data() + c), far_rows = V::load(step.far_rows.data() + c);
        const auto near_columns = V::load(step.near_columns.data() + c), far_columns = V::load(step.far_columns.data() + c);
        int i = rows.first / step.grid_width, j = rows.first % step.grid_width;
        for (int row = rows.first; row < rows.first + rows.count; ++row) {
            const float* at = z + row * stride + c;
            const auto both = [&](int before, int after, int away, int step_size) {
                return V::add(before >= away ? V::load(at - away * step_size) : zero,
                              after > away ? V::load(at + away * step_size) : zero);
            };
            auto sum = V::fma(center, V::load(at), bias);
            sum = V::fma(near_rows, both(i, step.height - i, 1, down), sum);
            sum = V::fma(far_rows, both(i, step.height - i, 2, down), sum);
            sum = V::fma(near_columns, both(j, step.grid_width - j, 1, stride), sum);
            sum = V::fma(far_columns, both(j, step.grid_width - j, 2, stride), sum);
            V::store(x + row * stride + c, V::add(V::load(x + row * stride + c), sum));
            if (++j == step.grid_width) {
                j = 0;
                ++i;
            }
        }
    }
}

// P panels of outputs at a time, so that a number of x is read once for all of them.
template <class V, int P>
inline void real_panels(const Real& step, int panel, const float* x, const float* positions, float* y, int rows) {
    const int stride = padded(step.out), in = step.in;
    const float *weights = step.panels.data() + panel * in * lanes, *bias = step.bias.data() + panel * lanes;
    for (int first = 0; first < rows; first += block) {
        const float* from = x + first * in;
        typename V::Reals sum[P][block];
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < block; ++r) sum[p][r] = V::load(bias + p * lanes);
        for (int i = 0; i < in; ++i) {
#pragma GCC unroll 8
            for (int r = 0; r < block; ++r) {
                const auto value = V::every(from[i * block + r]);
#pragma GCC unroll 2
                for (int p = 0; p < P; ++p) sum[p][r] = V::fma(value, V::load(weights + (p * in + i) * lanes), sum[p][r]);
            }
        }
        for (int r = 0; r < block && first + r < rows; ++r)
            for (int p = 0; p < P; ++p) {
                const int at = (first + r) * stride + (panel + p) * lanes;
                V::store(y + at, V::add(sum[p][r], V::load(positions + at)));
            }
    }
}

template <class V>
void real(const Real& step, const float* x, const float* positions, float* y, int rows) {
    int panel = 0;
    for (; panel + 2 <= panels(step.out); panel += 2) real_panels<V, 2>(step, panel, x, positions, y, rows);
    if (panel < panels(step.out)) real_panels<V, 1>(step, panel, x, positions, y, rows);
}

template <class V>
void head(const Real& step, const float* x, float* y, Rows wanted) {
    in_blocks(wanted.count, [&]<int P>(int begin) {
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
