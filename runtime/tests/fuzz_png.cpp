// Decodes damaged PNG pictures whose checksums are right; anything but FileError is a failure.
//
// fuzz_png COUNT FILE...; meant for the sanitizer build.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "frugalvit/picture.h"

namespace {

using namespace frugalvit;
using Bytes = std::vector<std::uint8_t>;

std::size_t number(const Bytes& bytes, std::size_t at) {
    return static_cast<std::size_t>(bytes[at]) << 24 | bytes[at + 1] << 16 | bytes[at + 2] << 8 | bytes[at + 3];
}

// The right checksum behind every chunk, up to the first that does not fit.
void with_checksums(Bytes& bytes) {
    for (std::size_t at = 8; at + 12 <= bytes.size();) {
        const std::size_t length = number(bytes, at);
        if (length > bytes.size() - at - 12) return;
        const std::uint32_t sum = crc32(std::span<const std::uint8_t>(bytes).subspan(at + 4, length + 4));
        for (int i = 0; i < 4; ++i) bytes[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
        at += length + 12;
    }
}

class Damage {
public:
    explicit Damage(std::vector<Bytes> originals) : originals_(std::move(originals)) {}

    Bytes next() {
        Bytes bytes = originals_[below(originals_.size())];
        for (std::size_t changes = 1 + below(3); changes > 0; --changes) change(bytes);
        if (below(8) != 0) with_checksums(bytes);
        return bytes;
    }

private:
    std::size_t below(std::size_t limit) { return engine_() % limit; }

    void change(Bytes& bytes) {
        if (bytes.size() < 40) return;
        const std::size_t at = 8 + below(bytes.size() - 8);
        switch (below(7)) {
            case 0: bytes.resize(below(bytes.size())); break;
            case 1:
            case 2: bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ 1 << below(8)); break;
            case 3: bytes[at] = static_cast<std::uint8_t>(engine_()); break;
            case 4: bytes[16 + (below(2) ? 3 : 7)] = static_cast<std::uint8_t>(below(40)); break;  // width or height
            case 5: {  // bits, or the kind of color
                static constexpr std::uint8_t known[] = {0, 1, 2, 3, 4, 6, 8, 16};
                bytes[24 + below(2)] = known[below(sizeof known)];
                break;
            }
            default: {  // a chunk of another kind
                const std::size_t start = 8 + 4 + below(bytes.size() - 12);
                static constexpr char kinds[][5] = {"IHDR", "PLTE", "IDAT", "IEND", "tRNS", "eXIf"};
                const char* kind = kinds[below(6)];
                for (std::size_t i = 0; i < 4 && start + i < bytes.size(); ++i)
                    bytes[start + i] = static_cast<std::uint8_t>(kind[i]);
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
    for (int i = 0; i < rounds; ++i) {
        const Bytes bytes = damage.next();
        try {
            upright(decode_png(bytes), orientation(bytes));
            ++accepted;
        } catch (const FileError&) {
        }
    }
    std::printf("%d damaged files: %d refused, %d accepted\n", rounds, rounds - accepted, accepted);
    return accepted == 0 || accepted == rounds ? 1 : 0;
}
