// A packed file as a list of steps over buffers, every size checked. docs/format.md says what each step computes.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "frugalvit/file.h"
#include "frugalvit/kernels.h"

namespace frugalvit {

struct Image {
    int height, width, channels;
    int cover_height, cover_width;  // pictures are resized to just cover this, then cut
    std::string filter;
    std::array<std::array<float, 256>, 3> normalized;  // of each channel, of each pixel value
};

struct Buffer {
    std::string name;
    int rows, columns;
    std::size_t size() const { return static_cast<std::size_t>(rows) * padded(columns); }
};

struct Tokens {
    int first, count, columns;
    Array<float> values;
};

struct Patches {
    Real product;
    Array<float> positions;
    int patch, first, grid_width;
};

struct Add {
    Affine affine;
};

struct PackAttention {
    std::shared_ptr<const Attention> attention;
};

struct Attend {
    std::shared_ptr<const Attention> attention;
};

struct MergeReal {
    Real product;
    Array<float> positions;
    int in, grid_width;
};

struct Mean {
    int columns, first, count;
};

struct Head {
    Real product;
};

using Operation =
    std::variant<Tokens, Patches, Affine, Add, Linear, Mlp, PackAttention, Attend, Pool, Cross, Merge, MergeReal, Mean, Head>;

struct Step {
    std::string kind;
    int number = 0;  // of the step in the file
    Operation operation;
    int units = 0;            // independent pieces of work: rows or panels
    std::vector<int> by_row;  // buffers of which unit i reads row i alone
    std::vector<int> whole;   // buffers of which any row may be read
    int to = 0;               // unit i writes row i; `from` buffers come in the order of the kernel
    std::vector<int> from;
};

struct Program {
    std::string name;
    Image image;
    std::vector<std::string> labels;  // may be empty
    std::vector<Buffer> buffers;
    std::vector<Step> steps;
    int logits = 0;

    int packed_buffer() const { return static_cast<int>(buffers.size()); }  // stands for the signs of keys and values
};

inline bool contains(const std::vector<int>& list, int value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

Program read_program(const PackedFile&);  // throws FileError

}  // namespace frugalvit
