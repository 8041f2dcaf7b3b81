// Which steps run without waiting for other threads, and which of their buffers need no memory of their own.
#pragma once

#include <algorithm>

#include "frugalvit/model.h"

namespace frugalvit {

inline bool reads(const Step& step, int buffer) {
    const bool adds = std::holds_alternative<Add>(step.operation) || std::holds_alternative<Cross>(step.operation);
    return contains(step.by_row, buffer) || contains(step.whole, buffer) || (adds && step.to == buffer);
}

inline bool touches(const Step& step, int buffer) { return step.to == buffer || reads(step, buffer); }

// Every row, and nothing of it is kept.
inline bool fills(const Program& program, const Step& step, int buffer) {
    return step.to == buffer && !reads(step, buffer) && step.units == program.buffers[buffer].rows &&
           !std::holds_alternative<Tokens>(step.operation);
}

// May `next` run on a thread's rows while other threads are still at an earlier step of the phase?
inline bool independent(const Program& program, const Phase& phase, const Step& next) {
    if (next.units != phase.units) return false;
    for (int i = phase.first_step; i < phase.first_step + phase.steps; ++i) {
        const Step& earlier = program.steps[i];
        if (contains(next.whole, earlier.to) || contains(earlier.whole, next.to)) return false;
    }
    return true;
}

inline std::vector<Phase> phases_of(const Program& program) {
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

// The buffers that a phase alone uses, row by row: a few rows in a thread's own memory will do.
inline std::vector<std::vector<int>> passing_buffers(const Program& program, const std::vector<Phase>& phases) {
    std::vector<std::vector<int>> passing;
    for (const Phase& phase : phases) {
        const auto begin = program.steps.begin() + phase.first_step, end = begin + phase.steps;
        std::vector<int>& passes = passing.emplace_back();
        for (int buffer = 0; buffer < static_cast<int>(program.buffers.size()); ++buffer) {
            const auto here = [&](const Step& step) { return touches(step, buffer); };
            const auto first = std::find_if(begin, end, here), next = std::find_if(end, program.steps.end(), here);
            const bool whole = std::any_of(begin, end, [&](const Step& step) { return contains(step.whole, buffer); });
            if (first != end && fills(program, *first, buffer) && !whole && buffer != program.logits &&
                (next == program.steps.end() || fills(program, *next, buffer)))
                passes.push_back(buffer);
        }
    }
    return passing;
}

}  // namespace frugalvit
