// The definition: naive, portable, never optimized. Other instruction sets are admitted by giving the same bits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "frugalvit/kernels.h"

namespace frugalvit {
namespace {

using Words = std::vector<std::uint64_t>;

Words signs(const float* x, const float* threshold, int count) {
    Words bits(words64(count));
    for (int i = 0; i < count; ++i) bits[i / 64] |= std::uint64_t{x[i] < threshold[i]} << (i % 64);
    return bits;
}

float activate(const Activation& after, int channel, int product, float shortcut) {
    const float v = std::fma(after.gain[channel], static_cast<float>(product), after.bias[channel]) + shortcut;
    return v < 0 ? std::fma(v, after.slope[channel], after.move[channel]) : v + after.move[channel];
}

void affine(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    for (int row = rows.first; row < rows.first + rows.count; ++row)
        for (int c = 0; c < step.columns; ++c) {
            const int at = row * stride + c;
            y[at] = std::fma(x[at], step.gain[c], step.bias[c]);
        }
}

void add(const Affine& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns);
    for (int row = rows.first; row < rows.first + rows.count; ++row)
        for (int c = 0; c < step.columns; ++c) {
            const int at = row * stride + c;
            y[at] = std::fma(x[at], step.gain[c], step.bias[c]) + y[at];
        }
}

void linear(const Linear& step, const float* x, float* y, Rows rows, Scratch&) {
    const BinaryWeights& weights = step.weights;
    const int stride = padded(weights.in);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const float* from = x + row * stride;
        const Words bits = signs(from, step.threshold.data(), weights.in);
        for (int c = 0; c < weights.out; ++c) {
            const int product = dot(bits.data(), weights.rows.data() + c * words64(weights.in), weights.in);
            y[row * stride + c] = activate(step.after, c, product, from[c]);
        }
    }
}

void mlp(const Mlp& step, const float* x, float* y, Rows rows, Scratch&) {
    const int hidden = step.dim * step.expand, stride = padded(step.dim);
    const float share = 1.0f / static_cast<float>(step.expand);
    std::vector<float> h(hidden);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const float* z = x + row * stride;
        const Words z_bits = signs(z, step.up.threshold.data(), step.dim);
        for (int c = 0; c < hidden; ++c) {
            const int product = dot(z_bits.data(), step.up.weights.rows.data() + c * words64(step.dim), step.dim);
            h[c] = activate(step.up.after, c, product, z[c % step.dim]);
        }
        const Words h_bits = signs(h.data(), step.down.threshold.data(), hidden);
        for (int c = 0; c < step.dim; ++c) {
            float sum = 0;
            for (int e = 0; e < step.expand; ++e) sum += h[step.expand * c + e];
            const int product = dot(h_bits.data(), step.down.weights.rows.data() + c * words64(hidden), hidden);
            y[row * stride + c] = activate(step.down.after, c, product, sum * share);
        }
    }
}

void sign_attention(const Attention&, const float*, const float*, std::uint16_t*, Rows) {}

void pack_attention(const Attention&, const std::uint16_t*, std::uint32_t*) {}

// Which keys of one head a query attends to. Sums run over 16 lanes, key j in lane j % 16, which are then added in halves.
std::vector<int> attended(const Attention& step, const std::vector<int>& mismatches) {
    std::vector<float> weights(mismatches.size());
    float sums[lanes] = {};
    for (std::size_t j = 0; j < weights.size(); ++j) {
        weights[j] = step.coarse[mismatches[j] / 16] * step.fine[mismatches[j] % 16];
        sums[j % lanes] += weights[j];
    }
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    std::vector<int> chosen;
    for (std::size_t j = 0; j < weights.size(); ++j)
        if (weights[j] > step.limit * sums[0]) chosen.push_back(static_cast<int>(j));
    return chosen;
}

void attention(const Attention& step, const float* query, const float* key, const float* value, const std::uint32_t*, float* y,
               Rows rows, Scratch&) {
    const int width = step.head_width(), stride = padded(step.width);
    std::vector<int> mismatches(step.keys);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int shortcut = step.key_row(row) * stride;
        for (int head = 0; head < step.heads; ++head) {
            const int begin = head * width;
            const Words q = signs(query + row * stride + begin, step.query_threshold.data() + begin, width);
            for (int j = 0; j < step.keys; ++j) {
                const Words k = signs(key + j * stride + begin, step.key_threshold.data() + begin, width);
                mismatches[j] = (width - dot(q.data(), k.data(), width)) / 2;
            }
            const std::vector<int> chosen = attended(step, mismatches);
            for (int c = begin; c < begin + width; ++c) {
                int product = 0;
                for (int j : chosen) product += value[j * stride + c] < step.value_threshold[c] ? -1 : 1;
                const float v = std::fma(step.after.gain[c], static_cast<float>(product), step.after.bias[c]) +
                                query[row * stride + c] + key[shortcut + c] + value[shortcut + c];
                y[row * stride + c] = v < 0 ? std::fma(v, step.after.slope[c], step.after.move[c]) : v + step.after.move[c];
            }
        }
    }
}

void pool(const Pool& step, const float* x, float* y, Rows rows) {
    const int stride = padded(step.columns), coarse_width = step.grid_width / step.side;
    const float share = 1.0f / static_cast<float>(step.side * step.side);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int top = row / coarse_width * step.side, left = row % coarse_width * step.side;
        for (int c = 0; c < step.columns; ++c) {
            float sum = 0;
            for (int i = 0; i < step.side; ++i)
                for (int j = 0; j < step.side; ++j) sum += x[((top + i) * step.grid_width + left + j) * stride + c];
            y[row * stride + c] = sum * share;
        }
    }
}

void cross(const Cross& step, const float* z, float* x, Rows rows) {
    const int stride = padded(step.columns);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int i = row / step.grid_width, j = row % step.grid_width;
        for (int c = 0; c < step.columns; ++c) {
            const auto at = [&](int di, int dj) {
                const bool inside = i + di >= 0 && i + di < step.height && j + dj >= 0 && j + dj < step.grid_width;
                return inside ? z[((i + di) * step.grid_width + j + dj) * stride + c] : 0.0f;
            };
            float sum = std::fma(step.center[c], at(0, 0), step.bias[c]);
            sum = std::fma(step.near_rows[c], at(-1, 0) + at(1, 0), sum);
            sum = std::fma(step.far_rows[c], at(-2, 0) + at(2, 0), sum);
            sum = std::fma(step.near_columns[c], at(0, -1) + at(0, 1), sum);
            sum = std::fma(step.far_columns[c], at(0, -2) + at(0, 2), sum);
            x[row * stride + c] += sum;
        }
    }
}

void merge(const Merge& step, const float* x, float* y, Rows rows, Scratch&) {
    const int stride = padded(step.in), coarse_width = step.grid_width / 2, words = words64(step.in);
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
        const int corner = row / coarse_width * 2 * step.grid_width + row % coarse_width * 2;
        const float* taps[4];
        Words bits;
        for (int tap = 0; tap < 4; ++tap) {
            taps[tap] = x + (corner + tap / 2 * step.grid_width + tap % 2) * stride;
            const Words part = signs(taps[tap], step.threshold.data(), step.in);
            bits.insert(bits.end(), part.begin(), part.end());
        }
        for (int c = 0; c < step.out; ++c) {
            int product = 0;
            for (int tap = 0; tap < 4; ++tap)
                product += dot(bits.data() + tap * words, step.weights.rows.data() + (c * 4 + tap) * words, step.in);
            const int from = c % step.in;
            const float mean = (taps[0][from] + taps[1][from] + taps[2][from] + taps[3][from]) * 0.25f;
            const int at = row * padded(step.out) + c;
            y[at] = activate(step.after, c, product, mean) + step.positions[at];
        }
    }
}

float real_product(const Real& step, const float* x, int c) {
    float sum = step.bias[c];
    for (int i = 0; i < step.in; ++i) sum = std::fma(x[i], step.panels[(c / lanes * step.in + i) * lanes + c % lanes], sum);
    return sum;
}

void real(const Real& step, const float* x, const float* positions, float* y, int rows) {
    for (int row = 0; row < rows; ++row)
        for (int c = 0; c < step.out; ++c) {
            const int at = row * padded(step.out) + c;
            y[at] = real_product(step, x + row * step.in, c) + positions[at];
        }
}

void head(const Real& step, const float* x, float* y, Rows panels) {
    const int end = std::min(step.out, (panels.first + panels.count) * lanes);
    for (int c = panels.first * lanes; c < end; ++c) y[c] = real_product(step, x, c);
}

std::uint8_t clipped(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> Taps::precision, 0, 255)); }

void shrink(const Taps& taps, const std::uint8_t* from, std::uint8_t* to, int outputs, int channels) {
    for (int x = 0; x < outputs; ++x)
        for (int c = 0; c < channels; ++c) {
            std::int32_t sum = 1 << (Taps::precision - 1);
            for (int i = 0; i < taps.count; ++i)
                sum += from[(taps.begin[x] + i) * channels + c] * taps.weights[static_cast<std::size_t>(x) * taps.count + i];
            to[x * channels + c] = clipped(sum);
        }
}

void blend(const std::int32_t* weights, int count, const std::uint8_t* from, std::uint8_t* to, int columns) {
    for (int x = 0; x < columns; ++x) {
        std::int32_t sum = 1 << (Taps::precision - 1);
        for (int i = 0; i < count; ++i) sum += from[i * columns + x] * weights[i];
        to[x] = clipped(sum);
    }
}

}  // namespace

const Kernels& reference_kernels() {
    static const Kernels kernels{"reference", affine, add,   linear, mlp,  sign_attention, pack_attention, attention,
                                 pool,        cross,  merge, real,   head, shrink,         blend};
    return kernels;
}

}  // namespace frugalvit
