#include <algorithm>
#include <chrono>
#include <cstring>

#include "frugalvit/model.h"
#include "places.h"

namespace frugalvit {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

// The units of a phase, dealt out in tiles: each thread has a share next to each other, and takes from others' when done.
class Runner::Shares {
public:
    Shares(int units, int tile, int threads) : units_(units), next_(threads) {
        const int rounds = (units + threads * tile - 1) / (threads * tile);
        tiles_ = std::min(units, threads * rounds);
    }

    void reset() {
        for (std::size_t thread = 0; thread < next_.size(); ++thread) next_[thread].tile = begin(static_cast<int>(thread));
    }

    // The next rows for this thread; none where count is 0.
    Rows take(int thread) {
        const int threads = static_cast<int>(next_.size());
        for (int i = 0; i < threads; ++i) {
            const int owner = (thread + i) % threads, end = begin(owner + 1);
            if (next_[owner].tile.load(std::memory_order_relaxed) >= end) continue;
            const int tile = next_[owner].tile.fetch_add(1, std::memory_order_relaxed);
            if (tile >= end) continue;
            const int first = unit(tile);
            return {first, unit(tile + 1) - first};
        }
        return {0, 0};
    }

private:
    struct alignas(64) Next {
        std::atomic<int> tile{0};
    };

    int begin(int thread) const {
        return static_cast<int>(static_cast<std::int64_t>(tiles_) * thread / static_cast<int>(next_.size()));
    }
    int unit(int tile) const { return static_cast<int>(static_cast<std::int64_t>(units_) * tile / tiles_); }

    int units_, tiles_ = 0;
    std::vector<Next> next_;
};

Runner::Runner(const Model& model, int threads) : model_(model), team_(threads) {
    for (int thread = 0; thread < threads; ++thread) memory_.push_back(model.memory());
    workspaces_.push_back(std::make_unique<Workspace>(model.program(), model.places()));
    for (const Phase& phase : model.phases()) shares_.push_back(std::make_unique<Shares>(phase.units, phase.tile, threads));
}

Runner::~Runner() = default;

void Runner::run_alone(const std::uint8_t* pixels, float* logits, int thread) {
    Workspace& space = *workspaces_[thread];
    memory_[thread].packed_for = nullptr;
    std::memcpy(space.pixels.data(), pixels, space.pixels.size());
    for (int phase = 0; phase < static_cast<int>(model_.phases().size()); ++phase) {
        const int units = model_.phases()[phase].units, tile = model_.phases()[phase].tile;
        for (int first = 0; first < units; first += tile)
            model_.run(phase, space, {first, std::min(tile, units - first)}, memory_[thread], nullptr);
    }
    std::memcpy(logits, space.buffers[model_.program().logits], model_.classes() * sizeof(float));
}

void Runner::run_together(int thread, std::vector<double>* seconds) {
    Workspace& space = *workspaces_[0];
    memory_[thread].packed_for = nullptr;
    for (int phase = 0; phase < static_cast<int>(model_.phases().size()); ++phase) {
        Shares& shares = *shares_[phase];
        for (Rows rows = shares.take(thread); rows.count; rows = shares.take(thread))
            model_.run(phase, space, rows, memory_[thread], seconds);
        const auto start = seconds ? Clock::now() : Clock::time_point{};
        team_.wait_for_all();
        if (seconds) seconds->back() += since(start);
    }
}

void Runner::run(const std::uint8_t* pixels, int pictures, float* logits) {
    const std::size_t size = workspaces_[0]->pixels.size();
    if (pictures < team_.size()) {
        for (int i = 0; i < pictures; ++i) {
            std::memcpy(workspaces_[0]->pixels.data(), pixels + i * size, size);
            for (auto& shares : shares_) shares->reset();
            team_.run([&](int thread) { run_together(thread, nullptr); });
            std::memcpy(logits + static_cast<std::size_t>(i) * model_.classes(),
                        workspaces_[0]->buffers[model_.program().logits], model_.classes() * sizeof(float));
        }
        return;
    }
    while (static_cast<int>(workspaces_.size()) < team_.size())
        workspaces_.push_back(std::make_unique<Workspace>(model_.program(), model_.places()));
    std::atomic<int> next{0};
    team_.run([&](int thread) {
        for (int i = next++; i < pictures; i = next++)
            run_alone(pixels + i * size, logits + static_cast<std::size_t>(i) * model_.classes(), thread);
    });
}

void Runner::run(const PictureView& picture, float* logits) {
    const Image& image = model_.program().image;
    if (!framing_ || !framing_->fits(picture)) framing_ = std::make_unique<Framing>(picture, image, model_.kernels());
    Framing& framing = *framing_;
    Workspace& space = *workspaces_[0];
    Shares source(framing.rows(), tile, team_.size()), target(image.height, tile, team_.size());
    source.reset();
    target.reset();
    for (auto& shares : shares_) shares->reset();
    std::vector<std::vector<double>> spent(team_.size(), std::vector<double>(model_.program().steps.size() + 2));
    team_.run([&](int thread) {
        const auto start = Clock::now();
        for (Rows rows = source.take(thread); rows.count; rows = source.take(thread))
            for (int row = rows.first; row < rows.first + rows.count; ++row) framing.shrink_row(picture, row);
        team_.wait_for_all();
        for (Rows rows = target.take(thread); rows.count; rows = target.take(thread))
            for (int row = rows.first; row < rows.first + rows.count; ++row) framing.fill_row(row, space.pixels.data());
        team_.wait_for_all();
        spent[thread][model_.program().steps.size()] += since(start);
        run_together(thread, seconds ? &spent[thread] : nullptr);
    });
    if (seconds)
        for (const std::vector<double>& thread : spent)
            for (std::size_t i = 0; i < thread.size(); ++i) (*seconds)[i] += thread[i];
    std::memcpy(logits, space.buffers[model_.program().logits], model_.classes() * sizeof(float));
}

void Runner::trace(const std::uint8_t* pixels, const std::function<void(const Step&, const float*)>& watch) {
    Workspace space(model_.program(), separate_places(model_.program()));
    std::memcpy(space.pixels.data(), pixels, space.pixels.size());
    for (const Step& step : model_.program().steps) {
        for (int first = 0; first < step.units; first += tile)
            model_.run_step(step, space, {first, std::min(tile, step.units - first)}, memory_[0]);
        if (!std::holds_alternative<PackAttention>(step.operation)) watch(step, space.buffers[step.to]);
    }
}

}  // namespace frugalvit
