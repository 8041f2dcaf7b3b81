#include "frugalvit/model.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace frugalvit {
namespace {

using Clock = std::chrono::steady_clock;

bool contains(const std::vector<int>& list, int value) { return std::find(list.begin(), list.end(), value) != list.end(); }

// May `next` run on a thread's rows while other threads are still at an earlier step of the phase?
bool independent(const Program& program, const Phase& phase, const Step& next) {
    if (next.units != phase.units) return false;
    for (int i = phase.first_step; i < phase.first_step + phase.steps; ++i) {
        const Step& earlier = program.steps[i];
        if (contains(next.whole, earlier.to) || contains(earlier.whole, next.to)) return false;
    }
    return true;
}

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
        kernels.pack_attention(*pack.attention, from(0), from(1), space.packed.data(), rows, scratch);
    }
    void operator()(const Attend& attend) const {
        kernels.attention(*attend.attention, from(0), from(1), from(2), space.packed.data(), to(), rows, scratch);
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

std::vector<Phase> phases_of(const Program& program) {
    std::vector<Phase> phases;
    for (int i = 0; i < static_cast<int>(program.steps.size()); ++i) {
        const Step& step = program.steps[i];
        if (!phases.empty() && independent(program, phases.back(), step)) ++phases.back().steps;
        else phases.push_back({i, 1, step.units, tile});
    }
    constexpr int numbers = 2048;  // of a buffer's tile: several buffers fit in the first cache
    for (Phase& phase : phases)
        for (int i = phase.first_step; i < phase.first_step + phase.steps; ++i)
            if (const int to = program.steps[i].to; to < program.packed_buffer())
                phase.tile = std::min(phase.tile, std::max(8, numbers / program.buffers[to].columns));
    return phases;
}

Workspace::Workspace(const Program& program) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) buffers.emplace_back(program.buffers[i].size(), shift_of(i));
    std::size_t words = 0;
    for (const Step& step : program.steps)
        if (const auto* pack = std::get_if<PackAttention>(&step.operation))
            words = std::max(words, attention_words(*pack->attention));
    packed = Array<std::uint32_t>(words);
    pixels.resize(static_cast<std::size_t>(program.image.height) * program.image.width * program.image.channels);
}

std::vector<std::vector<bool>> passing_buffers(const Program& program, const std::vector<Phase>& phases) {
    const auto reads = [](const Step& step, int buffer) {
        const bool adds = std::holds_alternative<Add>(step.operation) || std::holds_alternative<Cross>(step.operation);
        return contains(step.by_row, buffer) || contains(step.whole, buffer) || (adds && step.to == buffer);
    };
    const auto fills = [&](const Step& step, int buffer) {  // every row, and nothing of it is kept
        return step.to == buffer && !reads(step, buffer) && step.units == program.buffers[buffer].rows &&
               !std::holds_alternative<Tokens>(step.operation) && !std::holds_alternative<Patches>(step.operation);
    };
    const int count = static_cast<int>(program.buffers.size());
    std::vector<std::vector<bool>> passing;
    for (const Phase& phase : phases) {
        const auto begin = program.steps.begin() + phase.first_step, end = begin + phase.steps;
        std::vector<bool>& passes = passing.emplace_back(count);
        for (int buffer = 0; buffer < count; ++buffer) {
            const auto touches = [&](const Step& step) { return step.to == buffer || reads(step, buffer); };
            const auto first = std::find_if(begin, end, touches), next = std::find_if(end, program.steps.end(), touches);
            const bool whole = std::any_of(begin, end, [&](const Step& step) { return contains(step.whole, buffer); });
            passes[buffer] = first != end && fills(*first, buffer) && !whole && buffer != program.logits &&
                             (next == program.steps.end() || fills(*next, buffer));
        }
    }
    return passing;
}

Model::Model(const PackedFile& file, const Kernels& kernels)
    : program_(read_program(file)),
      kernels_(kernels),
      phases_(phases_of(program_)),
      passing_(passing_buffers(program_, phases_)) {
    for (const Step& step : program_.steps) {
        const ScratchSize size = scratch_needed(step.operation);
        scratch_size_.reals = std::max(scratch_size_.reals, size.reals);
        scratch_size_.bits = std::max(scratch_size_.bits, size.bits);
    }
}

ThreadMemory Model::memory() const {
    ThreadMemory memory{{Array<float>(scratch_size_.reals), Array<std::uint32_t>(scratch_size_.bits)}, {}, {}};
    memory.buffers.resize(program_.buffers.size());
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
        const bool passes = std::any_of(passing_.begin(), passing_.end(), [&](const auto& phase) { return phase[i]; });
        memory.rows.emplace_back(passes ? static_cast<std::size_t>(tile) * padded(program_.buffers[i].columns) : 0,
                                 shift_of(i) + 5);
    }
    return memory;
}

void Model::run(int phase, Workspace& space, Rows rows, ThreadMemory& memory, std::vector<double>* seconds) const {
    float** buffers = memory.buffers.data();
    for (std::size_t i = 0; i < memory.buffers.size(); ++i)
        buffers[i] = passing_[phase][i]
                         ? memory.rows[i].data() - static_cast<std::ptrdiff_t>(rows.first) * padded(program_.buffers[i].columns)
                         : space.buffers[i].data();
    const int first = phases_[phase].first_step, steps = phases_[phase].steps;
    for (int i = 0; i < steps; ++i) {
        const Step& step = program_.steps[first + i];
        const auto start = seconds ? Clock::now() : Clock::time_point{};
        std::visit(Run{kernels_, program_.image, space, step, rows, memory.scratch, buffers}, step.operation);
        if (seconds) (*seconds)[first + i] += std::chrono::duration<double>(Clock::now() - start).count();
    }
}

void Model::run_step(const Step& step, Workspace& space, Rows rows, ThreadMemory& memory) const {
    std::vector<float*> buffers;
    for (Array<float>& buffer : space.buffers) buffers.push_back(buffer.data());
    std::visit(Run{kernels_, program_.image, space, step, rows, memory.scratch, buffers.data()}, step.operation);
}

}  // namespace frugalvit
