// From the JSON of a program to steps: what program.cpp and steps.cpp share.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "fields.h"
#include "frugalvit/program.h"
#include "layout.h"

namespace frugalvit {

inline constexpr int most_rows = 1 << 20, most_columns = 1 << 16, most_steps = 10000;
inline constexpr std::size_t most_numbers = std::size_t{1} << 26;
inline constexpr float never_below = -std::numeric_limits<float>::infinity();

class Reader {
public:
    explicit Reader(const PackedFile& file) : file_(file) {}

    Program read();

private:
    void image(Fields fields);
    void buffers(const Json& object);

    int buffer(Fields& fields, const std::string& role) {
        const std::string name = fields.text(role);
        for (std::size_t i = 0; i < program_.buffers.size(); ++i)
            if (program_.buffers[i].name == name) return static_cast<int>(i);
        fields.fail("'" + role + "': there is no buffer '" + name + "'");
    }

    const Buffer& at(int index) const { return program_.buffers[index]; }

    void same_shape(const Fields& fields, int a, int b) const {
        if (at(a).rows != at(b).rows || at(a).columns != at(b).columns)
            fields.fail("buffers '" + at(a).name + "' and '" + at(b).name + "' differ in shape");
    }

    const Tensor& tensor(Fields& fields, const std::string& role, bool words, std::vector<std::int64_t> shape) {
        const std::string name = fields.text(role);
        const Tensor& found = file_.tensor(name);
        used_.insert(name);
        if ((found.type == "U64") != words || found.shape != shape) {
            Tensor wanted{words ? "U64" : "F32 or F16", std::move(shape), {}};
            fields.fail("'" + role + "' should be " + wanted.describe() + ", but '" + name + "' is " + found.describe());
        }
        for (std::int64_t i = 0; !words && i < found.size(); ++i)
            if (!std::isfinite(found.real(i)))
                fields.fail("'" + role + "' holds a number that is not finite, in '" + name + "'");
        return found;
    }

    Array<float> reals(Fields& fields, const std::string& role, int columns, float padding = 0) {
        return padded_rows(tensor(fields, role, false, {columns}), 1, columns, padding);
    }

    Array<float> table(Fields& fields, const std::string& role, int rows, int columns) {
        return padded_rows(tensor(fields, role, false, {rows, columns}), rows, columns, 0);
    }

    Activation activation(Fields& fields, int columns) {
        return {reals(fields, "gain", columns), reals(fields, "bias", columns), reals(fields, "slope", columns),
                reals(fields, "move", columns)};
    }

    // `parts` rows of `in` numbers stand behind each other, each padded to whole words.
    BinaryWeights weights(Fields& fields, int in, int parts, int out) {
        const int words = parts * words64(in);
        const Tensor& packed = tensor(fields, "weight", true, {out, words});
        BinaryWeights weights{in, out, Array<std::uint64_t>(static_cast<std::size_t>(out) * words), {}};
        const std::uint64_t tail = in % 64 ? ~std::uint64_t{0} << (in % 64) : 0;
        for (std::int64_t i = 0; i < packed.size(); ++i) {
            weights.rows[static_cast<std::size_t>(i)] = packed.word(i);
            if (i % words64(in) == words64(in) - 1 && (packed.word(i) & tail))
                fields.fail("bits of 'weight' past the end of a row");
        }
        lay_panels(weights, words);
        return weights;
    }

    Linear linear(Fields& fields, int in, int out) {
        return {weights(fields, in, 1, out), reals(fields, "threshold", in, never_below), activation(fields, out)};
    }

    Real real(Fields& fields, int in, int out) {
        const Tensor& weight = tensor(fields, "weight", false, {out, in});
        return real_panels(weight, tensor(fields, "bias", false, {out}));
    }

    void push(const std::string& kind, Operation operation, int units, std::vector<int> from, std::vector<int> by_row,
              std::vector<int> whole, int to) {
        program_.steps.push_back(
            {kind, number_, std::move(operation), units, std::move(by_row), std::move(whole), to, std::move(from)});
    }

    void push_by_row(const std::string& kind, Operation operation, int from, int to) {
        push(kind, std::move(operation), at(to).rows, {from}, {from}, {}, to);
    }

    // The width of the grid whose rows and columns are divisible by `side`.
    int grid(Fields& fields, const Buffer& tokens, int side) {
        const int width = fields.whole("width", 1, most_rows);
        if (tokens.rows % width != 0 || width % side != 0 || tokens.rows / width % side != 0)
            fields.fail(std::to_string(tokens.rows) + " tokens are no grid of width " + std::to_string(width) +
                        " that can be divided by " + std::to_string(side));
        return width;
    }

    void read_step(Fields& fields);
    void read_tokens(Fields& fields, int to);
    void read_patches(Fields& fields, int to);
    void read_mlp(Fields& fields, int to);
    void read_attention(Fields& fields, int to);
    void pack_early();
    void read_pool(Fields& fields, int to);
    void read_cross(Fields& fields, int to);
    void read_merge(Fields& fields, int to);
    void read_merge_real(Fields& fields, int to);
    void read_mean(Fields& fields, int to);
    void read_head(Fields& fields, int to);

    const PackedFile& file_;
    Program program_;
    std::set<std::string> used_;
    int number_ = 0;
};

}  // namespace frugalvit
