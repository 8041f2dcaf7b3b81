// Where buffers lie: those that are not needed at the same time share memory, which is then more often in the cache.
#pragma once

#include "phases.h"

namespace frugalvit {

// The steps from the first to the last for which a buffer has to be in memory, and their phases.
struct Life {
    int buffer;
    int first = -1, last = -1;
    int first_phase = -1, last_phase = -1;
};

inline Life life_of(const Program& program, const std::vector<Phase>& phases, const std::vector<std::vector<int>>& passing,
                    int buffer) {
    Life life{buffer};
    for (int phase = 0; phase < static_cast<int>(phases.size()); ++phase) {
        if (contains(passing[phase], buffer)) continue;
        for (int i = phases[phase].first_step; i < phases[phase].first_step + phases[phase].steps; ++i) {
            if (!touches(program.steps[i], buffer)) continue;
            if (life.first < 0) life.first = i, life.first_phase = phase;
            life.last = i;
            life.last_phase = phase;
        }
    }
    return life;
}

// May `next` take the memory of `old` within a phase: row by row, each as soon as the old one is done with?
inline bool hands_over(const Program& program, const Phase& phase, const Life& old, const Life& next) {
    const Buffer &from = program.buffers[old.buffer], &to = program.buffers[next.buffer];
    if (from.rows != phase.units || to.rows != phase.units || from.columns != to.columns) return false;
    for (int i = phase.first_step; i < phase.first_step + phase.steps; ++i)
        if (contains(program.steps[i].whole, old.buffer) || contains(program.steps[i].whole, next.buffer)) return false;
    return old.last < next.first ||
           (old.last == next.first && std::holds_alternative<Affine>(program.steps[next.first].operation));
}

// A buffer that is not filled by its first step, and the logits, have a place of their own.
inline Places shared_places(const Program& program, const std::vector<Phase>& phases,
                            const std::vector<std::vector<int>>& passing) {
    std::vector<Life> lives;
    for (int buffer = 0; buffer < static_cast<int>(program.buffers.size()); ++buffer)
        lives.push_back(life_of(program, phases, passing, buffer));
    std::stable_sort(lives.begin(), lives.end(), [](const Life& a, const Life& b) { return a.first < b.first; });
    Places places{std::vector<int>(program.buffers.size(), -1), {}};
    std::vector<Life> latest;  // in each place
    for (const Life& life : lives) {
        if (life.first < 0 && life.buffer != program.logits) continue;
        const bool shares = life.buffer != program.logits && fills(program, program.steps[life.first], life.buffer);
        int best = -1;
        for (int place = 0; shares && place < static_cast<int>(latest.size()); ++place) {
            const Life& old = latest[place];
            if (old.buffer < 0) continue;  // not to be shared
            const bool free = old.last_phase < life.first_phase ||
                              (old.last_phase == life.first_phase && hands_over(program, phases[old.last_phase], old, life));
            if (free && (best < 0 || old.last > latest[best].last)) best = place;
        }
        if (best < 0) {
            best = static_cast<int>(latest.size());
            latest.emplace_back();
            places.numbers.push_back(0);
        }
        latest[best] = life;
        if (!shares) latest[best].buffer = -1;
        places.of[life.buffer] = best;
        places.numbers[best] = std::max(places.numbers[best], program.buffers[life.buffer].size());
    }
    return places;
}

inline Places separate_places(const Program& program) {
    Places places;
    for (const Buffer& buffer : program.buffers) {
        places.of.push_back(static_cast<int>(places.of.size()));
        places.numbers.push_back(buffer.size());
    }
    return places;
}

}  // namespace frugalvit
