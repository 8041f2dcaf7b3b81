#include "layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace frugalvit {
namespace {

constexpr float never_below = -std::numeric_limits<float>::infinity();

void set_minus(std::uint64_t* row, int index) { row[index / 64] |= std::uint64_t{1} << (index % 64); }

}  // namespace

void lay_panels(BinaryWeights& weights, int words_per_row) {
    const int halves = words_per_row == words64(weights.in) ? words32(weights.in) : 2 * words_per_row;
    weights.panels = Array<std::uint32_t>(static_cast<std::size_t>(panels(weights.out)) * halves * lanes);
    for (int row = 0; row < weights.out; ++row)
        for (int half = 0; half < halves; ++half) {
            const std::uint64_t word = weights.rows[static_cast<std::size_t>(row) * words_per_row + half / 2];
            weights.panels[(static_cast<std::size_t>(row / lanes) * halves + half) * lanes + row % lanes] =
                static_cast<std::uint32_t>(word >> half % 2 * 32);
        }
}

Array<float> padded_rows(const Tensor& tensor, int rows, int columns, float padding) {
    const std::size_t stride = padded(columns);
    Array<float> out(rows * stride);
    for (int row = 0; row < rows; ++row)
        for (std::size_t c = 0; c < stride; ++c)
            out[row * stride + c] = c < static_cast<std::size_t>(columns)
                                        ? tensor.real(static_cast<std::int64_t>(row) * columns + static_cast<std::int64_t>(c))
                                        : padding;
    return out;
}

Real real_panels(const Tensor& weight, const Tensor& bias) {
    const int out = static_cast<int>(weight.shape[0]), in = static_cast<int>(weight.shape[1]);
    Real real{in, out, Array<float>(static_cast<std::size_t>(panels(out)) * in * lanes), padded_rows(bias, 1, out, 0)};
    for (int row = 0; row < out; ++row)
        for (int i = 0; i < in; ++i)
            real.panels[(static_cast<std::size_t>(row / lanes) * in + i) * lanes + row % lanes] =
                weight.real(static_cast<std::int64_t>(row) * in + i);
    return real;
}

void order_hidden(Mlp& mlp) {
    const int dim = mlp.dim, expand = mlp.expand, stride = padded(dim), places = expand * stride;
    const std::size_t row_words = words64(dim), hidden_words = words64(dim * expand), place_words = words64(places);
    mlp.ordered_up = {dim, places, Array<std::uint64_t>(places * row_words), {}};
    mlp.ordered_down = {places, dim, Array<std::uint64_t>(dim * place_words), {}};
    mlp.ordered_after = {Array<float>(places), Array<float>(places), Array<float>(places), Array<float>(places)};
    mlp.ordered_threshold = Array<float>(places);
    for (int place = 0; place < places; ++place) mlp.ordered_threshold[place] = never_below;
    for (int c = 0; c < dim; ++c)
        for (int e = 0; e < expand; ++e) {
            const int channel = expand * c + e, place = (c / lanes * expand + e) * lanes + c % lanes;
            std::memcpy(mlp.ordered_up.rows.data() + place * row_words, mlp.up.weights.rows.data() + channel * row_words,
                        row_words * sizeof(std::uint64_t));
            for (int out = 0; out < dim; ++out)
                if (is_minus(mlp.down.weights.rows.data() + out * hidden_words, channel))
                    set_minus(mlp.ordered_down.rows.data() + out * place_words, place);
            mlp.ordered_after.gain[place] = mlp.up.after.gain[channel];
            mlp.ordered_after.bias[place] = mlp.up.after.bias[channel];
            mlp.ordered_after.slope[place] = mlp.up.after.slope[channel];
            mlp.ordered_after.move[place] = mlp.up.after.move[channel];
            mlp.ordered_threshold[place] = mlp.down.threshold[channel];
        }
    lay_panels(mlp.ordered_up, static_cast<int>(row_words));
    lay_panels(mlp.ordered_down, static_cast<int>(place_words));

    // The shortcut of hidden channel expand * c + e is input (expand * c + e) % dim: it repeats after dim / expand channels c.
    const int repeats = dim % expand == 0 && dim == stride ? dim / expand : stride;
    mlp.period = repeats % lanes == 0 ? repeats : lanes % repeats == 0 ? lanes : stride;
    mlp.from = Array<std::int32_t>(static_cast<std::size_t>(expand) * mlp.period / lanes);
    mlp.pairs = Array<std::int32_t>(mlp.from.size());
    mlp.repeat = Array<std::int32_t>(static_cast<std::size_t>(expand) * mlp.period);
    for (std::size_t panel = 0; panel < mlp.from.size(); ++panel) {
        int low = dim, high = 0;
        for (int lane = 0; lane < lanes; ++lane) {
            const std::size_t place = panel * lanes + lane;
            const std::int64_t e = static_cast<std::int64_t>(place) / mlp.period,
                               i = static_cast<std::int64_t>(place) % mlp.period;
            mlp.repeat[place] = static_cast<std::int32_t>((expand * i + e) % dim);
            low = std::min(low, mlp.repeat[place]);
            high = std::max(high, mlp.repeat[place]);
        }
        mlp.from[panel] = low / lanes * lanes;
        for (int lane = 0; lane < lanes; ++lane) mlp.repeat[panel * lanes + lane] -= mlp.from[panel];
        mlp.pairs[panel] = (high - mlp.from[panel]) / (2 * lanes) + 1;
    }
}

void fill_exponentials(Attention& attention, double scale) {
    attention.coarse = Array<float>(16);
    attention.fine = Array<float>(16);
    for (int i = 0; i < 16; ++i) {
        attention.coarse[i] = static_cast<float>(std::exp(-2 * scale * 16 * i));
        attention.fine[i] = static_cast<float>(std::exp(-2 * scale * i));
    }
}

std::size_t attention_signs(const Attention& step) {
    return 2u * 32u * static_cast<std::size_t>(words32(step.keys)) * panels(step.width);
}

std::size_t attention_words(const Attention& step) {
    const std::size_t keys = static_cast<std::size_t>(panels(step.keys)) * words32(step.head_width()) * lanes;
    const std::size_t values = static_cast<std::size_t>(panels(step.head_width())) * words32(step.keys) * lanes;
    return step.heads * (keys + values);
}

// Blocks of eight rows, with a word to spare where a row of bits ends in half a word; a linear step takes the signs of up to
// 32 rows, some kernels in blocks of four.
ScratchSize scratch_of(const Linear& step) { return {0, 8u * 8u * (words32(step.weights.in) + 1)}; }

ScratchSize scratch_of(const Mlp& step) {
    const std::size_t stride = padded(step.dim);
    return {8 * (stride + static_cast<std::size_t>(step.expand) * step.period),
            8u * (words32(step.dim) + 1 + words32(step.expand * padded(step.dim)) + 1)};
}

ScratchSize scratch_of(const Attention& step) {
    const std::size_t keys = 32u * words32(step.keys);
    return {8 * keys, 8u * (words32(step.head_width()) + 1 + words32(step.keys) + 1)};
}

ScratchSize scratch_of(const Merge& step) {
    return {8u * static_cast<std::size_t>(padded(step.out)) + lanes, 8u * 4u * 2u * words64(step.in) + 8u};
}

}  // namespace frugalvit
