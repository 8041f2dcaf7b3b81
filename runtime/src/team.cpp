#include "frugalvit/team.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

namespace frugalvit {
namespace {

constexpr int spins = 2000;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void wait_while_equal(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
    for (int i = 0; i < spins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    value.wait(old, std::memory_order_acquire);
}

int processor() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

// Linux tends to wake a thread on the processor of the one that woke it, and leaves it there while both spin. Forbidding that
// processor for a moment moves the thread elsewhere.
void leave(int crowded) {
#if defined(__linux__)
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    others = allowed;
    CPU_CLR(crowded, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
    sched_setaffinity(0, sizeof allowed, &allowed);
#else
    (void)crowded;
#endif
}

}  // namespace

int usable_processors() {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Team::Team(int threads) : processors_(threads) {
    try {
        for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work_on(thread); });
    } catch (const std::exception& error) {
        stop();
        throw std::invalid_argument("cannot start " + std::to_string(threads) + " threads (" + error.what() +
                                    "); set FRUGALVIT_THREADS to fewer");
    }
}

Team::~Team() { stop(); }

void Team::stop() {
    stop_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Team::run(const std::function<void(int)>& work) {
    work_ = &work;
    processors_[0] = processor();
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(0);
    wait_for_all();
}

void Team::wait_for_all() {
    if (workers_.empty()) return;
    const std::uint32_t old = passed_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size())) {
        arrived_.store(0, std::memory_order_relaxed);
        passed_.fetch_add(1, std::memory_order_release);
        passed_.notify_all();
    } else {
        wait_while_equal(passed_, old);
    }
}

void Team::find_room(int thread) {
    const int here = processor();
    for (int other = 0; here >= 0 && other < thread; ++other)
        if (processors_[other].load(std::memory_order_relaxed) == here) {
            leave(here);
            break;
        }
    processors_[thread] = processor();
}

void Team::work_on(int thread) {
    std::uint32_t seen = 0;
    while (true) {
        wait_while_equal(round_, seen);
        ++seen;
        if (stop_) return;
        find_room(thread);
        (*work_)(thread);
        wait_for_all();
    }
}

}  // namespace frugalvit
