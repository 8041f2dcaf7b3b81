#include "frugalvit/model.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "places.h"

namespace frugalvit {
namespace {

using Clock = std::chrono::steady_clock;

// Buffers start at different places of a page.
std::size_t shift_of(std::size_t buffer) { return buffer * 7 % 16; }

ScratchSize scratch_needed(const Operation& operation) {
    return std::visit(
        []<class T>(const T& step) -> ScratchSize {
            if constexpr (std::is_same_v<T, Linear> || std::is_same_v<T, Mlp> || std::is_same_v<T, Merge>)
                return scratch_of(step);
            else if constexpr (std::is_same_v<T, PackAttention> || std::is_same_v<T, Attend>)
                return scratch_of(*step.attention);
            else if constexpr (std::is_same_v<T, Patches> || std::is_same_v<T, MergeReal>)
                return {tile * static_cast<std::size_t>(step.product.in), 0};
            else return {};
        },
        operation);
}

// What each operation does with its buffers.
struct Run {
    const Kernels& kernels;
    const Image& image;
    Workspace& space;
    const Step& step;
    Rows rows;
    Scratch& scratch;
    ThreadMemory& memory;
    float* const* buffers;

    const float* from(int i) const { return buffers[step.from[i]]; }
    float* to() const { return buffers[step.to]; }

    void operator()(const Tokens& tokens) const {
        const std::size_t stride = padded(tokens.columns);
        std::memcpy(to() + tokens.first * stride, tokens.values.data(), tokens.count * stride * sizeof(float));
    }
    void operator()(const Affine& affine) const { kernels.affine(affine, from(0), to(), rows); }
    void operator()(const Add& add) const { kernels.add(add.affine, from(0), to(), rows); }
    void operator()(const Linear& linear) const { kernels.linear(linear, from(0), to(), rows, scratch); }
    void operator()(const Mlp& mlp) const { kernels.mlp(mlp, from(0), to(), rows, scratch); }
    void operator()(const PackAttention& pack) const {
        kernels.sign_attention(*pack.attention, from(0), from(1), space.signs.data(), rows);
        memory.packed_for = nullptr;
    }
    void operator()(const Attend& attend) const {
        const Attention& attention = *attend.attention;
        if (memory.packed_for != &attention) kernels.pack_attention(attention, space.signs.data(), memory.packed.data());
        memory.packed_for = &attention;
        kernels.attention(attention, from(0), from(1), from(2), memory.packed.data(), to(), rows, scratch);
    }
    void operator()(const Pool& pool) const { kernels.pool(pool, from(0), to(), rows); }
    void operator()(const Cross& cross) const { kernels.cross(cross, from(0), to(), rows); }
    void operator()(const Merge& merge) const { kernels.merge(merge, from(0), to(), rows, scratch); }

    // `gather(row, out)` collects the numbers of one row of a real product.
    template <class Gather>
    void product(const Real& real, const Array<float>& positions, int first_row, Gather gather) const {
        float* gathered = scratch.reals.data();
        const std::size_t stride = padded(real.out);
        for (int i = 0; i < rows.count; ++i) gather(rows.first + i, gathered + i * real.in);
        kernels.real(real, gathered, positions.data() + rows.first * stride, to() + (first_row + rows.first) * stride,
                     rows.count);
    }
    template <int channels>
    void gather_patch(const std::uint8_t* corner, int side, float* out) const {
        const int size = side * side;
        for (int i = 0; i < side; ++i, corner += image.width * channels)
            for (int j = 0; j < side; ++j, ++out)
                for (int c = 0; c < channels; ++c) out[c * size] = image.normalized[c][corner[j * channels + c]];
    }
    void operator()(const Patches& patches) const {
        const int side = patches.patch, channels = image.channels;
        product(patches.product, patches.positions, patches.first, [&](int row, float* out) {
            const int top = row / patches.grid_width * side, left = row % patches.grid_width * side;
            const std::uint8_t* corner = space.pixels.data() + (top * image.width + left) * channels;
            if (channels == 3) gather_patch<3>(corner, side, out);
            else gather_patch<1>(corner, side, out);
        });
    }
    void operator()(const MergeReal& merge) const {
        const int stride = padded(merge.in), coarse_width = merge.grid_width / 2;
        product(merge.product, merge.positions, 0, [&](int row, float* out) {
            const float* corner = from(0) + (row / coarse_width * 2 * merge.grid_width + row % coarse_width * 2) * stride;
            for (int tap = 0; tap < 4; ++tap)
                std::memcpy(out + tap * merge.in, corner + (tap / 2 * merge.grid_width + tap % 2) * stride,
                            merge.in * sizeof(float));
        });
    }
    void operator()(const Mean& mean) const {
        const std::size_t stride = padded(mean.columns);
        float* out = to();
        std::fill_n(out, mean.columns, 0.0f);
        for (int row = mean.first; row < mean.first + mean.count; ++row)
            for (int c = 0; c < mean.columns; ++c) out[c] += from(0)[row * stride + c];
        for (int c = 0; c < mean.columns; ++c) out[c] *= 1.0f / static_cast<float>(mean.count);
    }
    void operator()(const Head& head) const { kernels.head(head.product, from(0), to(), rows); }
};

}  // namespace

Workspace::Workspace(const Program& program, const Places& places) {
    for (std::size_t i = 0; i < places.numbers.size(); ++i) memory.emplace_back(places.numbers[i], shift_of(i));
    for (const int place : places.of) buffers.push_back(place < 0 ? nullptr : memory[place].data());
    std::size_t most = 0;
    for (const Step& step : program.steps)
        if (const auto* pack = std::get_if<PackAttention>(&step.operation))
            most = std::max(most, attention_signs(*pack->attention));
    signs = Array<std::uint16_t>(most);
    pixels.resize(static_cast<std::size_t>(program.image.height) * program.image.width * program.image.channels);
}

Model::Model(const PackedFile& file, const Kernels& kernels)
    : program_(read_program(file)),
      kernels_(kernels),
      phases_(phases_of(program_)),
      passing_(passing_buffers(program_, phases_)),
      places_(shared_places(program_, phases_, passing_)) {
    for (const Step& step : program_.steps) {
        const ScratchSize size = scratch_needed(step.operation);
        scratch_size_.reals = std::max(scratch_size_.reals, size.reals);
        scratch_size_.bits = std::max(scratch_size_.bits, size.bits);
    }
}

ThreadMemory Model::memory() const {
    ThreadMemory memory{{Array<float>(scratch_size_.reals), Array<std::uint32_t>(scratch_size_.bits)}, {}, {}, {}};
    std::size_t words = 0;
    for (const Step& step : program_.steps)
        if (const auto* attend = std::get_if<Attend>(&step.operation))
            words = std::max(words, attention_words(*attend->attention));
    memory.packed = Array<std::uint32_t>(words);
    memory.buffers.resize(program_.buffers.size());
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
        const bool passes = std::any_of(passing_.begin(), passing_.end(),
                                        [&](const auto& phase) { return contains(phase, static_cast<int>(i)); });
        memory.rows.emplace_back(passes ? static_cast<std::size_t>(tile) * padded(program_.buffers[i].columns) : 0,
                                 shift_of(i) + 5);
    }
    return memory;
}

void Model::run(int phase, Workspace& space, Rows rows, ThreadMemory& memory, std::vector<double>* seconds) const {
    memory.buffers = space.buffers;
    float** buffers = memory.buffers.data();
    for (const int i : passing_[phase])
        buffers[i] = memory.rows[i].data() - static_cast<std::ptrdiff_t>(rows.first) * padded(program_.buffers[i].columns);
    const int first = phases_[phase].first_step, steps = phases_[phase].steps;
    for (int i = 0; i < steps; ++i) {
        const Step& step = program_.steps[first + i];
        const auto start = seconds ? Clock::now() : Clock::time_point{};
        std::visit(Run{kernels_, program_.image, space, step, rows, memory.scratch, memory, buffers}, step.operation);
        if (seconds) (*seconds)[first + i] += std::chrono::duration<double>(Clock::now() - start).count();
    }
}

void Model::run_step(const Step& step, Workspace& space, Rows rows, ThreadMemory& memory) const {
    std::visit(Run{kernels_, program_.image, space, step, rows, memory.scratch, memory, space.buffers.data()}, step.operation);
}

}  // namespace frugalvit
