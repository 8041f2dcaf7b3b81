// What an instruction set has to provide. Every kernel computes some rows of one step, from whole buffers to a whole buffer.
//
// Buffers hold rows of floats padded to a multiple of `lanes`; what stands in the padding is never used. Parameters are padded
// likewise. The operations and their order are written down in docs/format.md: every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frugalvit/bits.h"
#include "frugalvit/memory.h"

namespace frugalvit {

struct Rows {
    int first;
    int count;
};

// Memory of one thread. A kernel may use all of it and leaves nothing behind.
struct Scratch {
    Array<float> reals;
    Array<std::uint32_t> bits;
};

struct ScratchSize {
    std::size_t reals = 0;
    std::size_t bits = 0;
};

// y = x * gain + bias, per channel.
struct Affine {
    int columns;
    Array<float> gain, bias;
};

// From the integer of a one-bit product to a number: v = gain * product + bias + shortcut, then v + move, or slope * v + move
// where v is below 0.
struct Activation {
    Array<float> gain, bias, slope, move;
};

// One-bit weights, twice: rows as in the file, and panels [out / 16][word][16] of 32-bit halves for the vector kernels.
struct BinaryWeights {
    int in, out;
    Array<std::uint64_t> rows;
    Array<std::uint32_t> panels;
};

// activation(weights · sign(x - threshold), shortcut x); in = out.
struct Linear {
    BinaryWeights weights;
    Array<float> threshold;
    Activation after;
};

// Up: dim -> dim * expand with the shortcut repeated; down: back with neighboring channels averaged.
//
// The vector kernels keep hidden channel expand * c + e in panel c / 16 * expand + e, lane c % 16, so that averaging is plain
// addition of panels; the `ordered` parameters stand in that order. The shortcuts of that channel are `repeat`ed: lane i % 16
// of panel p = (e * period + i) / 16 with i = c % period is input from[p] + repeat[e * period + i], and those of a panel lie
// within pairs[p] pairs of panels of inputs.
struct Mlp {
    int dim, expand;
    Linear up, down;
    BinaryWeights ordered_up, ordered_down;
    Activation ordered_after;
    Array<float> ordered_threshold;
    int period;
    Array<std::int32_t> from, pairs, repeat;
};

// Queries see all keys. Probabilities p become 1 where p > limit, else 0. Keys may stand on a grid that is `side` times
// coarser.
//
// softmax over integer scores needs exp at few places: exp(-2 * scale * m) = coarse[m / 16] * fine[m % 16] for m mismatches.
struct Attention {
    int heads, width, queries, keys, key_width, side;  // width: channels of all heads
    int grid_width;                                    // of the queries; used where side > 1
    float limit;
    Array<float> coarse, fine;
    Array<float> query_threshold, key_threshold, value_threshold;
    Activation after;

    int head_width() const { return width / heads; }
    int key_row(int query) const {
        return side == 1 ? query : query / grid_width / side * key_width + query % grid_width / side;
    }
};

// Averages of side x side squares of a grid.
struct Pool {
    int columns, grid_width, side;
};

// x += center * z + near_rows * (z above + z below) + far_rows * (two above + two below) + the same along columns + bias.
struct Cross {
    int columns, height, grid_width;
    Array<float> center, near_rows, far_rows, near_columns, far_columns, bias;
};

// One-bit 2 x 2 convolution with stride 2; the shortcut is the average of the four, repeated; positions are added last.
struct Merge {
    int in, out, grid_width;
    BinaryWeights weights;  // four taps, each padded to whole words
    Array<float> threshold;
    Activation after;
    Array<float> positions;
};

// Real weights as panels [out / 16][in][16].
struct Real {
    int in, out;
    Array<float> panels, bias;
};

// One direction of Pillow's antialiased resizing: each output is a weighted sum of neighboring inputs, in fixed point.
struct Taps {
    static constexpr int precision = 32 - 8 - 2;  // bits after the point

    int count = 0;                      // inputs per output
    std::vector<int> begin;             // the first of them
    std::vector<std::int32_t> weights;  // [output][count]

    // The same for kernels that multiply 16-bit numbers, two inputs and two outputs at a time: a weight is
    // high * 2^split_bits + low. [output / 2][pair][low, high][output % 2][8]: both weights of the pair, for three channels.
    static constexpr int split_bits = 12;
    static constexpr int margin = 16;
    int pairs = 0;  // even
    Array<std::int16_t> split;
    std::size_t split_size() const { return static_cast<std::size_t>(pairs) * 16; }  // of an output

    Taps() = default;
    // Outputs `first` to `first + outputs - 1` of `out`, from `in` inputs.
    Taps(int in, int out, int first, int outputs, const std::string& filter);
};

struct Kernels {
    const char* name;

    void (*affine)(const Affine&, const float* x, float* y, Rows);
    void (*add)(const Affine&, const float* x, float* y, Rows);  // y += x * gain + bias
    void (*linear)(const Linear&, const float* x, float* y, Rows, Scratch&);
    void (*mlp)(const Mlp&, const float* x, float* y, Rows, Scratch&);
    // Signs of some keys and values, then all of them as `attention` wants them. What `signs` and `packed` hold is the kernels'
    // own matter; for their sizes see attention_signs and attention_words.
    void (*sign_attention)(const Attention&, const float* key, const float* value, std::uint16_t* signs, Rows keys);
    void (*pack_attention)(const Attention&, const std::uint16_t* signs, std::uint32_t* packed);
    void (*attention)(const Attention&, const float* query, const float* key, const float* value, const std::uint32_t* packed,
                      float* y, Rows, Scratch&);
    void (*pool)(const Pool&, const float* x, float* y, Rows);
    void (*cross)(const Cross&, const float* z, float* x, Rows);
    void (*merge)(const Merge&, const float* x, float* y, Rows, Scratch&);
    // Rows of x have no padding.
    void (*real)(const Real&, const float* x, const float* positions, float* y, int rows);
    void (*head)(const Real&, const float* x, float* y, Rows panels);  // one row
    // A row of pixels made narrower or wider; Taps::margin bytes behind the row may be read.
    void (*shrink)(const Taps&, const std::uint8_t* from, std::uint8_t* to, int outputs, int channels);
    // A weighted sum of `count` rows that are `columns` apart.
    void (*blend)(const std::int32_t* weights, int count, const std::uint8_t* from, std::uint8_t* to, int columns);
};

std::size_t attention_signs(const Attention&);
std::size_t attention_words(const Attention&);
ScratchSize scratch_of(const Linear&);
ScratchSize scratch_of(const Mlp&);
ScratchSize scratch_of(const Attention&);
ScratchSize scratch_of(const Merge&);

const Kernels& reference_kernels();
// The best kernels that this CPU runs, or those that FRUGALVIT_KERNEL names.
const Kernels& select_kernels();
// All that this CPU runs, the reference first; null ends the list.
const Kernels* const* available_kernels();

}  // namespace frugalvit
