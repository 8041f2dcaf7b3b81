// Decodes damaged JPEG pictures; anything but FileError is a failure, and so is a picture that takes long.
//
// fuzz_jpeg COUNT FILE...; meant for the sanitizer build.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>

#include "frugalvit/picture.h"

namespace {

using namespace frugalvit;
using Bytes = std::vector<std::uint8_t>;

constexpr double most_seconds = 10;  // of processor time, with sanitizers

class Damage {
public:
    explicit Damage(std::vector<Bytes> originals) : originals_(std::move(originals)) {}

    Bytes next() {
        Bytes bytes = any();
        for (std::size_t changes = 1 + below(4); changes > 0 && bytes.size() > 8; --changes) change(bytes);
        return bytes;
    }

private:
    std::size_t below(std::size_t limit) { return engine_() % limit; }
    std::uint8_t byte() { return static_cast<std::uint8_t>(engine_()); }
    const Bytes& any() { return originals_[below(originals_.size())]; }

    // A place right behind the start of a segment, or anywhere.
    std::size_t place(const Bytes& bytes) {
        const std::size_t start = 2 + below(bytes.size() - 6);
        if (below(3) == 0) return start;
        for (std::size_t at = start; at + 6 < bytes.size(); ++at)
            if (bytes[at] == 0xFF && bytes[at + 1] >= 0xC0) return at + below(6);
        return start;
    }

    void change(Bytes& bytes) {
        static constexpr std::uint8_t markers[] = {0xC0, 0xC1, 0xC2, 0xC4, 0xD0, 0xD8, 0xD9,
                                                   0xDA, 0xDB, 0xDD, 0xE1, 0xFF, 0x00};
        const std::size_t at = place(bytes);
        switch (below(9)) {
            case 0: bytes.resize(below(bytes.size())); break;
            case 1:
            case 2: bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ 1 << below(8)); break;
            case 3: bytes[at] = byte(); break;
            case 4: bytes[at] = below(2) ? 0 : 0xFF; break;
            case 5: {  // a marker, in place of another or of pixels
                bytes[at] = 0xFF;
                bytes[at + 1] = markers[below(sizeof markers)];
                break;
            }
            case 6: {  // a piece of this or another file
                const Bytes& other = any();
                const std::size_t from = below(other.size()), length = std::min(other.size() - from, 1 + below(200));
                bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), other.begin() + static_cast<std::ptrdiff_t>(from),
                             other.begin() + static_cast<std::ptrdiff_t>(from + length));
                break;
            }
            case 7: {  // a piece is lost
                const std::size_t length = std::min(bytes.size() - at, 1 + below(40));
                bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                            bytes.begin() + static_cast<std::ptrdiff_t>(at + length));
                break;
            }
            default: {  // another size or number of components
                for (std::size_t i = 2; i + 10 < bytes.size(); ++i)
                    if (bytes[i] == 0xFF && bytes[i + 1] >= 0xC0 && bytes[i + 1] <= 0xC2) {
                        bytes[i + 5 + below(5)] = below(2) ? byte() : static_cast<std::uint8_t>(below(4));
                        break;
                    }
            }
        }
    }

    std::vector<Bytes> originals_;
    std::mt19937_64 engine_{1};
};

}  // namespace

int main(int count, char** words) {
    if (count < 3) return 2;
    const int rounds = std::atoi(words[1]);
    std::vector<Bytes> originals;
    for (int i = 2; i < count; ++i) originals.push_back(read_bytes(words[i]));
    Damage damage(std::move(originals));
    int accepted = 0;
    double slowest = 0;
    for (int i = 0; i < rounds; ++i) {
        const Bytes bytes = damage.next();
        const std::clock_t start = std::clock();
        try {
            upright(decode_jpeg(bytes), orientation(bytes));
            ++accepted;
        } catch (const FileError&) {
        }
        slowest = std::max(slowest, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    std::printf("%d damaged files: %d refused, %d accepted, at most %.2f s\n", rounds, rounds - accepted, accepted, slowest);
    return accepted == 0 || accepted == rounds || slowest > most_seconds ? 1 : 0;
}
