// fvit MODEL PICTURE...      the most probable classes of pictures; --top K of them
// fvit bench MODEL           milliseconds a picture, and where they go
// fvit trace MODEL PICTURE   every step's numbers, to standard output: for tests
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "frugalvit/model.h"

namespace {

using namespace frugalvit;

constexpr int most_threads = 256;

// Whoever read the output has enough, which is no error.
struct Unread {};

void flush() {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    if (errno == EPIPE) throw Unread{};
    throw FileError(std::string("standard output: cannot be written (") + std::strerror(errno) + ")");
}

std::string in_words(const std::exception& error) {
    return dynamic_cast<const std::bad_alloc*>(&error) ? "not enough memory" : error.what();
}

// What happened to a file, its name in front.
std::string about(const std::string& path, const std::exception& error) {
    const std::string words = in_words(error);
    return words.starts_with(path + ": ") ? words : path + ": " + words;
}

int threads() {
    const char* wanted = std::getenv("FRUGALVIT_THREADS");
    if (!wanted || !*wanted) return std::min(usable_processors(), most_threads);
    char* end = nullptr;
    const long count = std::strtol(wanted, &end, 10);
    if (end == wanted || *end || count < 1 || count > most_threads)
        throw FileError(std::string("FRUGALVIT_THREADS=") + wanted + ": use a whole number from 1 to 256");
    return static_cast<int>(count);
}

Model opened(const std::string& path) {
    try {
        return Model{PackedFile(read_bytes(path))};
    } catch (const FileError& error) {
        throw FileError(about(path, error));
    } catch (const std::bad_alloc& error) {
        throw FileError(about(path, error));
    }
}

void print_best(const Program& program, const std::vector<float>& logits, const std::string& path, std::size_t top) {
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const std::size_t shown = std::min(top, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [&](int a, int b) { return logits[a] > logits[b]; });
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit) - logits[order[0]]);
    std::printf("%s\n", path.c_str());
    for (std::size_t i = 0; i < shown; ++i) {
        const int c = order[i];
        const std::string label = program.labels.empty() ? "class " + std::to_string(c) : program.labels[c];
        std::printf("  %5.1f %%  %s\n", 100 * std::exp(static_cast<double>(logits[c]) - logits[order[0]]) / total,
                    label.c_str());
    }
    flush();
}

void refuse_overflow(const std::vector<float>& logits) {
    if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }))
        throw FileError("the model has no answer: not all logits are finite, for its numbers are too large");
}

int classify(const Model& model, std::span<const std::string> paths, std::size_t top) {
    Runner runner(model, threads());
    std::vector<float> logits(model.classes());
    bool all = true;
    for (const std::string& path : paths) {
        try {
            runner.run(with_channels(read_picture(path), model.program().image.channels), logits.data());
            refuse_overflow(logits);
        } catch (const std::exception& error) {  // others may have an answer
            std::fprintf(stderr, "fvit: %s\n", about(path, error).c_str());
            all = false;
            continue;
        }
        print_best(model.program(), logits, path, top);
    }
    return all ? 0 : 1;
}

Picture noise(int height, int width, int channels) {
    Picture picture{height, width, channels, std::vector<std::uint8_t>(static_cast<std::size_t>(height) * width * channels)};
    std::uint32_t state = 1;
    for (std::uint8_t& pixel : picture.pixels) pixel = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    return picture;
}

int bench(const Model& model) {
    constexpr int runs = 200;
    Runner runner(model, threads());
    const Picture picture = noise(375, 500, model.program().image.channels);
    std::vector<float> logits(model.classes());
    const auto timed = [&] {
        const auto start = std::chrono::steady_clock::now();
        runner.run(picture, logits.data());
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    for (int i = 0; i < 20; ++i) timed();
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) times.push_back(timed());
    std::sort(times.begin(), times.end());
    std::printf("%s: %s kernels, %d threads, a picture of 500 x 375 pixels, %d runs\n", model.program().name.c_str(),
                model.kernels().name, threads(), runs);
    std::printf("  %.3f ms a picture (median), %.3f the fastest, %.3f the slowest tenth\n", times[runs / 2], times[0],
                times[runs * 9 / 10]);

    // The steps of the fastest run: other programs on the machine disturb the slower ones.
    std::vector<double> seconds(model.program().steps.size() + 2), fastest;
    runner.seconds = &seconds;
    double least = 1e9;
    for (int i = 0; i < runs; ++i) {
        std::fill(seconds.begin(), seconds.end(), 0.0);
        const double time = timed();
        if (time < least) {
            least = time;
            fastest = seconds;
        }
    }
    std::map<std::string, double> kinds;
    for (const Step& step : model.program().steps) {
        const Buffer* buffer = step.kind == "pack" ? nullptr : &model.program().buffers[step.to];
        const std::string size = buffer ? " " + std::to_string(buffer->rows) + " x " + std::to_string(buffer->columns) : "";
        kinds[step.kind + size] += fastest[&step - model.program().steps.data()];
    }
    kinds["resize"] = fastest[fastest.size() - 2];
    kinds["wait for other threads"] = fastest.back();
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [kind, spent] : kinds) sorted.emplace_back(spent * 1000, kind);
    std::sort(sorted.rbegin(), sorted.rend());
    std::printf("  milliseconds of all threads together, in a run of %.3f ms:\n", least);
    for (const auto& [spent, kind] : sorted) std::printf("  %8.3f  %s\n", spent, kind.c_str());
    return 0;
}

// For each step its number, rows and columns as 32-bit integers, then the rows.
int trace(const Model& model, const std::string& path) {
    const Picture picture = with_channels(read_picture(path), model.program().image.channels);
    const Image& image = model.program().image;
    if (picture.height != image.height || picture.width != image.width)
        throw FileError("trace: give a picture of the model's size");
    Runner runner(model, 1);
    runner.trace(picture.pixels.data(), [&](const Step& step, const float* rows) {
        const Buffer& buffer = model.program().buffers[step.to];
        const std::int32_t head[3] = {step.number, buffer.rows, buffer.columns};
        std::fwrite(head, sizeof head, 1, stdout);
        for (int row = 0; row < buffer.rows; ++row)
            std::fwrite(rows + static_cast<std::size_t>(row) * padded(buffer.columns), sizeof(float), buffer.columns, stdout);
        flush();
    });
    return 0;
}

constexpr const char* usage =
    "usage: fvit MODEL PICTURE... [--top K]   JPEG, PNG, or binary PPM or PGM; the K most probable classes (5)\n"
    "       fvit bench MODEL                  milliseconds a picture, and where they go\n"
    "       fvit --help | --version\n"
    "FRUGALVIT_THREADS=N threads, 1 to 256; FRUGALVIT_KERNEL=reference, avx2, avx512 or neon\n";

// The K of `--top K`, which is taken out of the words; 0 where it is not there.
std::size_t taken_top(std::vector<std::string>& words) {
    const auto found = std::find(words.begin(), words.end(), "--top");
    if (found == words.end() || found + 1 == words.end()) return 0;
    const std::string wanted = found[1];
    char* end = nullptr;
    const long count = std::strtol(wanted.c_str(), &end, 10);
    if (wanted.empty() || *end || count < 1) throw FileError("--top " + wanted + ": use a whole number, 1 or more");
    words.erase(found, found + 2);
    return static_cast<std::size_t>(count);
}

int answer(std::vector<std::string> words) {
    const std::size_t top = taken_top(words);
    const std::string first = words.empty() ? "" : words[0];
    if (first == "--help" || first == "-h") return std::fputs(usage, stdout), 0;
    if (first == "--version") return std::printf("fvit %s\n", FRUGALVIT_VERSION), 0;
    const bool verb = first == "bench" || first == "trace";
    const bool enough = verb ? words.size() == (first == "bench" ? 2 : 3) : words.size() >= 2 && words.back() != "--top";
    if (!enough || (verb && top)) return std::fputs(usage, stderr), 2;
    const Model model = opened(words[verb ? 1 : 0]);
    if (first == "bench") return bench(model);
    if (first == "trace") return trace(model, words[2]);
    return classify(model, std::span(words).subspan(1), top ? top : 5);
}

}  // namespace

int main(int count, char** words) try {
    const int code = answer({words + std::min(count, 1), words + count});
    flush();
    return code;
} catch (const Unread&) {
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "fvit: %s\n", in_words(error).c_str());
    return 1;
}
