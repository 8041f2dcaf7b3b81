// Steps with random numbers, laid out as the reader lays them out.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "../src/layout.h"
#include "frugalvit/kernels.h"

namespace frugalvit {

// With sixteenths, numbers equal to thresholds and sums of exactly 0 occur, but little is ever rounded; with others, every
// operation rounds, and one that is fused, split or in another place gives other bits.
enum class Numbers { sixteenths, others };

class Random {
public:
    Random(unsigned seed, Numbers numbers) : engine_(seed), numbers_(numbers) {}

    float real() {
        const double number = normal_(engine_);
        return static_cast<float>(numbers_ == Numbers::sixteenths ? std::nearbyint(number * 16) / 16 : number);
    }

    Array<float> reals(int rows, int columns, float padding = 0) {
        Array<float> out(static_cast<std::size_t>(rows) * padded(columns));
        for (int row = 0; row < rows; ++row)
            for (int c = 0; c < padded(columns); ++c)
                out[static_cast<std::size_t>(row) * padded(columns) + c] = c < columns ? real() : padding;
        return out;
    }

    // What stands in the padding of a buffer must not matter.
    Array<float> buffer(int rows, int columns) { return reals(rows, columns, std::numeric_limits<float>::quiet_NaN()); }
    Array<float> threshold(int columns) { return reals(1, columns, -std::numeric_limits<float>::infinity()); }

    BinaryWeights weights(int in, int out, int parts = 1) {
        const int words = parts * words64(in);
        BinaryWeights weights{in, out, Array<std::uint64_t>(static_cast<std::size_t>(out) * words), {}};
        for (int row = 0; row < out * parts; ++row)
            for (int i = 0; i < in; ++i)
                weights.rows[static_cast<std::size_t>(row) * words64(in) + i / 64] |= std::uint64_t{engine_() % 2} << (i % 64);
        lay_panels(weights, words);
        return weights;
    }

    Activation activation(int columns) { return {reals(1, columns), reals(1, columns), reals(1, columns), reals(1, columns)}; }
    Affine affine(int columns) { return {columns, reals(1, columns), reals(1, columns)}; }
    Linear linear(int in, int out) { return {weights(in, out), threshold(in), activation(out)}; }

    Mlp mlp(int dim, int expand) {
        Mlp mlp{dim, expand, linear(dim, dim * expand), linear(dim * expand, dim), {}, {}, {}, {}, 0, {}, {}, {}};
        order_hidden(mlp);
        return mlp;
    }

    Attention attention(int heads, int head_width, int height, int width, int side, float limit) {
        Attention attention{};
        attention.heads = heads;
        attention.width = heads * head_width;
        attention.queries = height * width;
        attention.keys = attention.queries / side / side;
        attention.side = side;
        attention.grid_width = width;
        attention.key_width = width / side;
        attention.limit = limit;
        fill_exponentials(attention, 1 / std::sqrt(static_cast<double>(head_width)));
        attention.query_threshold = threshold(attention.width);
        attention.key_threshold = threshold(attention.width);
        attention.value_threshold = threshold(attention.width);
        attention.after = activation(attention.width);
        return attention;
    }

    Cross cross(int columns, int height, int width) {
        return {columns,
                height,
                width,
                reals(1, columns),
                reals(1, columns),
                reals(1, columns),
                reals(1, columns),
                reals(1, columns),
                reals(1, columns)};
    }

    Merge merge(int in, int out, int height, int width) {
        return {in, out, width, weights(in, out, 4), threshold(in), activation(out), reals(height * width / 4, out)};
    }

    Real real_product(int in, int out) {
        Real product{in, out, Array<float>(static_cast<std::size_t>(panels(out)) * in * lanes), reals(1, out)};
        for (int row = 0; row < out; ++row)
            for (int i = 0; i < in; ++i)
                product.panels[(static_cast<std::size_t>(row / lanes) * in + i) * lanes + row % lanes] =
                    static_cast<float>(normal_(engine_));
        return product;
    }

    // Half of them black or white, so that weighted sums leave the range of a byte on both sides.
    std::vector<std::uint8_t> bytes(int count) {
        std::vector<std::uint8_t> out(count);
        for (std::uint8_t& byte : out) {
            const auto number = engine_();
            byte = static_cast<std::uint8_t>(number % 4 == 0 ? 0 : number % 4 == 1 ? 255 : number >> 8);
        }
        return out;
    }

private:
    std::mt19937 engine_;
    Numbers numbers_;
    std::normal_distribution<double> normal_;
};

inline Scratch scratch(ScratchSize size) { return {Array<float>(size.reals), Array<std::uint32_t>(size.bits)}; }

}  // namespace frugalvit
