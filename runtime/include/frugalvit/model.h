// A packed model ready to run: pictures in, logits out.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "frugalvit/kernels.h"
#include "frugalvit/picture.h"
#include "frugalvit/program.h"
#include "frugalvit/team.h"

namespace frugalvit {

// Consecutive steps that a thread may run one after the other on its own rows, without waiting for other threads.
struct Phase {
    int first_step, steps, units;
    int tile;  // the most rows that a thread takes at a time: few enough to stay in its cache from step to step
};

// Where buffers lie; several may share a place.
struct Places {
    std::vector<int> of;               // each buffer; -1 where it passes in all its phases
    std::vector<std::size_t> numbers;  // of each place
};

inline constexpr int tile = 32;  // the most rows of any phase's tiles

// The buffers of one picture on its way through the model.
struct Workspace {
    Workspace(const Program&, const Places&);

    std::vector<Array<float>> memory;
    std::vector<float*> buffers;
    Array<std::uint16_t> signs;  // of keys and values
    std::vector<std::uint8_t> pixels;
};

// What a thread needs beside the workspace.
struct ThreadMemory {
    Scratch scratch;
    std::vector<Array<float>> rows;         // of each buffer that passes in some phase, a tile's rows
    std::vector<float*> buffers;            // where each buffer is in the present phase
    Array<std::uint32_t> packed;            // keys and values
    const Attention* packed_for = nullptr;  // of the present picture
};

class Model {
public:
    explicit Model(const PackedFile&, const Kernels& = select_kernels());

    const Program& program() const { return program_; }
    const Kernels& kernels() const { return kernels_; }
    const std::vector<Phase>& phases() const { return phases_; }
    const Places& places() const { return places_; }
    int classes() const { return program_.buffers[program_.logits].columns; }
    ThreadMemory memory() const;
    // Runs the steps of a phase on some rows.
    void run(int phase, Workspace&, Rows, ThreadMemory&, std::vector<double>* seconds) const;
    void run_step(const Step&, Workspace&, Rows, ThreadMemory&) const;  // in a workspace of separate places

private:
    Program program_;
    const Kernels& kernels_;
    std::vector<Phase> phases_;
    std::vector<std::vector<int>> passing_;  // buffers of each phase
    Places places_;
    ScratchSize scratch_size_;
};

class Runner {
public:
    Runner(const Model&, int threads);

    // Pixels of the model's size, height x width x channels of each picture; logits: classes of each picture.
    void run(const std::uint8_t* pixels, int pictures, float* logits);
    // A picture of any size.
    void run(const PictureView&, float* logits);
    // Step by step on one thread; `watch` sees each step's buffer when it has been computed.
    void trace(const std::uint8_t* pixels, const std::function<void(const Step&, const float*)>& watch);
    // Where not null, run(picture) adds the seconds of every step, over all threads; one more for resizing, one for waiting.
    std::vector<double>* seconds = nullptr;

private:
    class Shares;
    void run_alone(const std::uint8_t* pixels, float* logits, int thread);
    void run_together(int thread, std::vector<double>* seconds);

    const Model& model_;
    Team team_;
    std::vector<std::unique_ptr<Workspace>> workspaces_;
    std::vector<ThreadMemory> memory_;
    std::vector<std::unique_ptr<Shares>> shares_;  // of each phase
    std::unique_ptr<Framing> framing_;             // for pictures of the size of the last one
public:
    ~Runner();
};

}  // namespace frugalvit
