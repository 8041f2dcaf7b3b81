// PNG pictures of at most 8 bits a channel: gray, RGB, palette, with or without alpha (which is dropped), not interlaced.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "frugalvit/picture.h"

namespace frugalvit {
namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 28;

[[noreturn]] void fail(const std::string& what) { throw FileError("a PNG picture with " + what); }

// DEFLATE (RFC 1951).
class Inflate {
public:
    Inflate(std::span<const std::uint8_t> in, std::size_t size) : in_(in), size_(size) { out_.reserve(size); }

    std::vector<std::uint8_t> run() {
        bool last = false;
        while (!last) {
            last = bits(1);
            switch (bits(2)) {
                case 0: stored(); break;
                case 1: fixed(); break;
                case 2: dynamic(); break;
                default: fail("a broken block");
            }
        }
        if (out_.size() != size_) fail("too few pixels");
        return std::move(out_);
    }

private:
    struct Codes {
        std::array<std::uint16_t, 16> count{};
        std::array<std::uint16_t, 288> symbols{};

        Codes(const std::uint8_t* lengths, int number) {
            for (int i = 0; i < number; ++i) ++count[lengths[i]];
            count[0] = 0;
            std::array<std::uint16_t, 16> place{};
            for (int length = 1; length < 15; ++length) place[length + 1] = place[length] + count[length];
            for (int i = 0; i < number; ++i)
                if (lengths[i]) symbols[place[lengths[i]]++] = static_cast<std::uint16_t>(i);
        }
    };

    int bits(int count) {
        while (held_ < count) {
            if (at_ >= in_.size()) fail("data that end too early");
            buffer_ |= static_cast<std::uint32_t>(in_[at_++]) << held_;
            held_ += 8;
        }
        const int value = static_cast<int>(buffer_ & ((1u << count) - 1));
        buffer_ >>= count;
        held_ -= count;
        return value;
    }

    int symbol(const Codes& codes) {
        int code = 0, first = 0, index = 0;
        for (int length = 1; length < 16; ++length) {
            code |= bits(1);
            const int count = codes.count[length];
            if (code - count < first) return codes.symbols[index + code - first];
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        fail("a broken code");
    }

    void put(std::uint8_t byte) {
        if (out_.size() >= size_) fail("too many pixels");
        out_.push_back(byte);
    }

    void stored() {
        buffer_ = 0;
        held_ = 0;
        const int length = bits(16);
        if ((length ^ bits(16)) != 0xFFFF) fail("a broken block");
        for (int i = 0; i < length; ++i) put(static_cast<std::uint8_t>(bits(8)));
    }

    void codes(const Codes& literals, const Codes& distances) {
        static constexpr int length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
        static constexpr int length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
        static constexpr int distance_base[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                  33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                  1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
        while (true) {
            const int code = symbol(literals);
            if (code == 256) return;
            if (code < 256) {
                put(static_cast<std::uint8_t>(code));
                continue;
            }
            if (code > 285) fail("a broken length");
            const int length = length_base[code - 257] + bits(length_bits[code - 257]);
            const int far = symbol(distances);
            if (far > 29) fail("a broken distance");
            const std::size_t distance = distance_base[far] + bits(far < 2 ? 0 : far / 2 - 1);
            if (distance > out_.size()) fail("a distance before the start");
            for (int i = 0; i < length; ++i) put(out_[out_.size() - distance]);
        }
    }

    void fixed() {
        std::uint8_t lengths[288], distances[30];
        for (int i = 0; i < 288; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
        std::memset(distances, 5, sizeof distances);
        codes(Codes(lengths, 288), Codes(distances, 30));
    }

    void dynamic() {
        static constexpr int order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
        const int literals = bits(5) + 257, distances = bits(5) + 1, meta = bits(4) + 4;
        if (literals > 286 || distances > 30) fail("too many codes");
        std::uint8_t lengths[320] = {};
        for (int i = 0; i < meta; ++i) lengths[order[i]] = static_cast<std::uint8_t>(bits(3));
        const Codes code_lengths(lengths, 19);
        std::memset(lengths, 0, sizeof lengths);
        for (int i = 0; i < literals + distances;) {
            const int code = symbol(code_lengths);
            int repeat = 1;
            std::uint8_t value = static_cast<std::uint8_t>(code);
            if (code >= 16) {
                if (code == 16 && i == 0) fail("nothing to repeat");
                value = code == 16 ? lengths[i - 1] : 0;
                repeat = code == 16 ? 3 + bits(2) : code == 17 ? 3 + bits(3) : 11 + bits(7);
            }
            if (i + repeat > literals + distances) fail("too many codes");
            for (; repeat > 0; --repeat) lengths[i++] = value;
        }
        codes(Codes(lengths, literals), Codes(lengths + literals, distances));
    }

    std::span<const std::uint8_t> in_;
    std::size_t size_, at_ = 0;
    std::vector<std::uint8_t> out_;
    std::uint32_t buffer_ = 0;
    int held_ = 0;
};

std::uint32_t big_endian(const std::uint8_t* at) {
    return static_cast<std::uint32_t>(at[0]) << 24 | static_cast<std::uint32_t>(at[1]) << 16 |
           static_cast<std::uint32_t>(at[2]) << 8 | at[3];
}

int nearest(int left, int above, int corner) {
    const int estimate = left + above - corner;
    const int a = std::abs(estimate - left), b = std::abs(estimate - above), c = std::abs(estimate - corner);
    return a <= b && a <= c ? left : b <= c ? above : corner;
}

// Undoes the prediction of each row, in place.
void unfilter(std::vector<std::uint8_t>& data, int height, std::size_t line, std::size_t depth) {
    for (int row = 0; row < height; ++row) {
        std::uint8_t* now = data.data() + row * (line + 1) + 1;
        const std::uint8_t* before = row ? now - line - 1 : nullptr;
        const int kind = now[-1];
        if (kind > 4) fail("an unknown filter");
        for (std::size_t i = 0; i < line; ++i) {
            const int left = i >= depth ? now[i - depth] : 0, above = before ? before[i] : 0;
            const int corner = before && i >= depth ? before[i - depth] : 0;
            const int guess[5] = {0, left, above, (left + above) / 2, nearest(left, above, corner)};
            now[i] = static_cast<std::uint8_t>(now[i] + guess[kind]);
        }
    }
}

// Number `x` of a row of numbers with so many bits, the first in a byte's highest.
unsigned number_at(const std::uint8_t* row, std::size_t x, int bits) {
    const std::size_t bit = x * bits;
    return row[bit / 8] >> (8 - bits - bit % 8) & ((1u << bits) - 1);
}

}  // namespace

Picture decode_png(std::span<const std::uint8_t> bytes) {
    static constexpr std::uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (bytes.size() < 8 || std::memcmp(bytes.data(), signature, 8) != 0) fail("no signature");
    Picture picture;
    int color = -1, bits = 8;
    std::vector<std::uint8_t> packed;
    std::span<const std::uint8_t> palette;
    for (std::size_t at = 8; bytes.size() - at >= 12;) {
        const std::size_t length = big_endian(bytes.data() + at);
        if (length > bytes.size() - at - 12) fail("data that end too early");
        const std::string kind(reinterpret_cast<const char*>(bytes.data()) + at + 4, 4);
        const auto data = bytes.subspan(at + 8, length);
        if (crc32(bytes.subspan(at + 4, length + 4)) != big_endian(bytes.data() + at + 8 + length)) fail("a wrong checksum");
        if (kind == "IHDR") {
            if (length != 13) fail("a broken header");
            bits = data[8];
            color = data[9];
            const bool few = (bits == 1 || bits == 2 || bits == 4) && (color == 0 || color == 3);
            if (bits != 8 && !few) fail(std::to_string(bits) + " bits a channel. Save it with 8");
            if (data[12] != 0) fail("interlaced rows. Save it without");
            if (big_endian(data.data()) > 1 << 15 || big_endian(data.data() + 4) > 1 << 15)
                fail("too many pixels. Make it at most 32,768 a side");
            picture.width = static_cast<int>(big_endian(data.data()));
            picture.height = static_cast<int>(big_endian(data.data() + 4));
        } else if (kind == "PLTE") {
            palette = data;
        } else if (kind == "IDAT") {
            packed.insert(packed.end(), data.begin(), data.end());
        } else if (kind == "IEND") {
            break;
        }
        at += length + 12;
    }
    const int stored = color == 0 || color == 3 ? 1 : color == 2 ? 3 : color == 4 ? 2 : color == 6 ? 4 : 0;
    if (!stored || !picture.width || !picture.height) fail("an unknown header");
    picture.channels = color == 0 || color == 4 ? 1 : 3;
    const std::size_t line = (static_cast<std::size_t>(picture.width) * stored * bits + 7) / 8;
    const std::size_t pixels = static_cast<std::size_t>(picture.width) * picture.height;
    if (packed.size() < 6) fail("no pixels");
    if (std::max((line + 1) * picture.height, pixels * picture.channels) > most_bytes)
        fail("too many pixels. Make it at most " + std::to_string(most_bytes / std::max(stored, picture.channels) / 1000000) +
             " million");
    auto data = Inflate(std::span<const std::uint8_t>(packed).subspan(2), (line + 1) * picture.height).run();
    unfilter(data, picture.height, line, stored);  // fewer than 8 bits count as a byte
    picture.pixels.reserve(pixels * picture.channels);
    for (int row = 0; row < picture.height; ++row) {
        const std::uint8_t* first = data.data() + row * (line + 1) + 1;
        for (std::size_t x = 0; x < static_cast<std::size_t>(picture.width); ++x) {
            if (color == 0 && bits < 8) {
                picture.pixels.push_back(static_cast<std::uint8_t>(number_at(first, x, bits) * (255 / ((1 << bits) - 1))));
                continue;
            }
            const std::uint8_t* from = first + x * stored * bits / 8;
            if (color == 3) {
                const unsigned index = number_at(first, x, bits);
                if ((index + 1) * 3 > palette.size()) fail("a color outside the palette");
                from = palette.data() + index * 3;
            }
            picture.pixels.insert(picture.pixels.end(), from, from + picture.channels);
        }
    }
    return picture;
}

}  // namespace frugalvit
