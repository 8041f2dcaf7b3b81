// A few threads that work on one thing at a time. Waiting threads spin briefly, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace frugalvit {

int usable_processors();  // by this process, at least 1

class Team {
public:
    explicit Team(int threads);  // throws std::invalid_argument where the system does not give so many
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }
    // Calls work(0) here and work(1), ... on the other threads; returns when all are done. `work` must not throw.
    void run(const std::function<void(int)>& work);
    // Within work: returns when all threads of the team have come here.
    void wait_for_all();

private:
    void work_on(int thread);
    void find_room(int thread);
    void stop();

    std::vector<std::atomic<int>> processors_;  // where each thread was last seen
    std::vector<std::thread> workers_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<std::uint32_t> round_{0};
    std::atomic<std::uint32_t> arrived_{0};
    std::atomic<std::uint32_t> passed_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace frugalvit
