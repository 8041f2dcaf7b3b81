// Loads damaged packed files and runs those that are accepted; anything but FileError is a failure.
//
// fuzz FILE COUNT [SEED]; meant for the sanitizer build.
#include <cstdio>
#include <cstdlib>

#include "frugalvit/model.h"
#include "mutations.h"

int main(int count, char** words) {
    using namespace frugalvit;
    if (count < 3) return 2;
    const int rounds = std::atoi(words[2]);
    Mutator mutator(read_bytes(words[1]), count > 3 ? static_cast<unsigned>(std::atoi(words[3])) : 1);
    int accepted = 0;
    for (int i = 0; i < rounds; ++i) {
        try {
            const Model model{PackedFile(mutator.next())};
            const Image& image = model.program().image;
            Runner runner(model, 1);
            std::vector<float> logits(model.classes());
            const std::vector<std::uint8_t> pixels(static_cast<std::size_t>(image.height) * image.width * image.channels, 100);
            runner.run(pixels.data(), 1, logits.data());
            ++accepted;
        } catch (const FileError&) {
        }
    }
    std::printf("%d damaged files: %d refused, %d accepted and run\n", rounds, rounds - accepted, accepted);
    return accepted == rounds ? 1 : 0;
}
