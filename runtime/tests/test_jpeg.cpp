// JPEG pictures: small ones made here and those that are refused; with arguments PICTURE... the pixels of each to standard
// output, behind a line of height, width and channels (0 0 0 where it is refused).
#include "check.h"
#include "frugalvit/picture.h"

namespace {

using namespace frugalvit;
using Bytes = std::vector<std::uint8_t>;

int dump(int count, char** paths) {
    for (int i = 0; i < count; ++i) {
        Picture picture;
        try {
            picture = read_picture(paths[i]);
        } catch (const FileError& error) {
            std::fprintf(stderr, "%s\n", error.what());
        }
        std::printf("%d %d %d\n", picture.height, picture.width, picture.channels);
        if (!picture.pixels.empty()) std::fwrite(picture.pixels.data(), 1, picture.pixels.size(), stdout);
    }
    return 0;
}

Bytes joined(std::initializer_list<Bytes> parts) {
    Bytes all;
    for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

Bytes segment(std::uint8_t marker, const Bytes& data) {
    const std::size_t length = data.size() + 2;
    return joined({{0xFF, marker, static_cast<std::uint8_t>(length >> 8), static_cast<std::uint8_t>(length)}, data});
}

Bytes frame(std::uint8_t marker, int height, int width, std::vector<std::uint8_t> factors, std::uint8_t bits = 8) {
    const auto byte = [](int value) { return static_cast<std::uint8_t>(value); };
    Bytes data = {bits, byte(height >> 8), byte(height), byte(width >> 8), byte(width), byte(static_cast<int>(factors.size()))};
    for (std::size_t i = 0; i < factors.size(); ++i) data.insert(data.end(), {byte(static_cast<int>(i) + 1), factors[i], 0});
    return segment(marker, data);
}

// Ones for quantization, and one symbol of each kind, 0, whose code is a zero bit.
Bytes tables() {
    Bytes factors(65, 1), dc(18, 0), ac(18, 0);
    factors[0] = 0;
    dc[1] = ac[1] = 1;
    ac[0] = 0x10;
    return joined({{0xFF, 0xD8}, segment(0xDB, factors), segment(0xC4, dc), segment(0xC4, ac)});
}

Bytes scan(std::uint8_t first, std::uint8_t last, std::uint8_t bits, const Bytes& data) {
    return joined({segment(0xDA, {1, 1, 0, first, last, bits}), data});
}

const Bytes end = {0xFF, 0xD9};

void refuses(const Bytes& bytes, const std::string& part) {
    std::string said = "nothing";
    try {
        decode_jpeg(bytes);
    } catch (const FileError& error) {
        said = error.what();
    }
    check::that(said != "nothing" && said.find(part) != std::string::npos, part + ": said " + said);
}

void check_small_pictures() {
    const Bytes gray = joined({tables(), frame(0xC0, 3, 5, {0x11}), scan(0, 63, 0, {0x3F}), end});
    const Picture picture = decode_jpeg(gray);
    check::that(picture.height == 3 && picture.width == 5 && picture.channels == 1, "size");
    check::that(picture.pixels == Bytes(15, 128), "all zeros are middle gray");
    for (std::size_t size = 0; size < gray.size(); ++size) refuses({gray.begin(), gray.begin() + size}, "");
    refuses({gray.begin(), gray.end() - 2}, "ends in the middle");
    refuses(joined({tables(), frame(0xC0, 3, 50, {0x11}), scan(0, 63, 0, {0x00}), end}), "too few pixels");
    refuses(joined({tables(), frame(0xC0, 3, 5, {0x11}), scan(0, 63, 0, {0xBF}), end}), "broken code");
    refuses(joined({tables(), frame(0xC0, 3, 5, {0x11}), scan(0, 63, 0, {0x3F}), scan(0, 63, 0, {0x3F}), end}), "come twice");
    refuses(joined({tables(), frame(0xC0, 3, 5, {0x11, 0x11, 0x11}), scan(0, 63, 0, {0x3F}), end}), "scans are missing");
    refuses(joined({{0xFF, 0xD8}, frame(0xC0, 3, 5, {0x11}), scan(0, 63, 0, {0x3F}), end}), "no quantization table");
    refuses(joined({tables(), end}), "no pixels");
}

void check_headers() {
    for (const int marker : {0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
        refuses(joined({tables(), frame(static_cast<std::uint8_t>(marker), 8, 8, {0x11})}), "arithmetic coding: re-save");
    for (const int marker : {0xC5, 0xC6, 0xC7, 0xDE})
        refuses(joined({tables(), frame(static_cast<std::uint8_t>(marker), 8, 8, {0x11})}), "hierarchical coding: re-save");
    refuses(joined({tables(), frame(0xC3, 8, 8, {0x11})}), "lossless coding: re-save");
    refuses(joined({tables(), frame(0xC1, 8, 8, {0x11}, 12)}), "more than 8 bits");
    refuses(joined({tables(), frame(0xC0, 8, 8, {0x11, 0x11})}), "2 channels");
    refuses(joined({tables(), frame(0xC0, 0, 8, {0x11})}), "no height");
    refuses(joined({tables(), frame(0xC0, 40000, 8, {0x11})}), "too many pixels");
    refuses(joined({tables(), frame(0xC0, 30000, 30000, {0x11})}), "too many pixels");
    refuses(joined({tables(), frame(0xC0, 10000, 8000, {0x11, 0x11, 0x11})}), "ends in the middle");
    refuses(joined({tables(), frame(0xC0, 8, 8, {0x31, 0x21, 0x11})}), "uneven places");
    refuses(joined({tables(), frame(0xC0, 8, 8, {0x51})}), "broken header");
    refuses(joined({tables(), frame(0xC0, 8, 8, {0x11}), frame(0xC0, 8, 8, {0x11})}), "two frames");
}

void check_progressions() {
    const Bytes start = joined({tables(), frame(0xC2, 8, 8, {0x11})}), dc = scan(0, 0, 0, {0x7F}), ac = scan(1, 63, 0, {0x7F});
    check::that(decode_jpeg(joined({start, dc, ac, end})).pixels == Bytes(64, 128), "progressive");
    refuses(joined({start, dc, end}), "scans are missing");
    refuses(joined({start, ac, end}), "scans are missing");
    refuses(joined({start, dc, scan(1, 63, 0x01, {0x7F}), end}), "scans are missing");
    refuses(joined({start, dc, ac, ac, end}), "scans out of order");
    refuses(joined({start, dc, scan(1, 63, 0x10, {0x7F}), end}), "scans out of order");
    refuses(joined({start, scan(0, 5, 0, {0x7F}), end}), "broken scan");
    refuses(joined({start, dc, scan(1, 64, 0, {0x7F}), end}), "broken scan");
    refuses(joined({start, dc, scan(9, 8, 0, {0x7F}), end}), "broken scan");
    refuses(joined({start, dc, scan(1, 63, 0x20, {0x7F}), end}), "broken scan");
    Bytes many = joined({start, dc});
    for (const std::uint8_t bits : {0x01, 0x10})
        for (std::uint8_t k = 1; k < 64; ++k) many = joined({many, scan(k, k, bits, {0x7F})});
    refuses(joined({many, end}), "scans: re-save");
}

void check_orientations() {
    const Picture picture{2, 3, 1, {1, 2, 3, 4, 5, 6}};
    const Bytes turned[9] = {{},
                             {1, 2, 3, 4, 5, 6},
                             {3, 2, 1, 6, 5, 4},
                             {6, 5, 4, 3, 2, 1},
                             {4, 5, 6, 1, 2, 3},
                             {1, 4, 2, 5, 3, 6},
                             {4, 1, 5, 2, 6, 3},
                             {6, 3, 5, 2, 4, 1},
                             {3, 6, 2, 5, 1, 4}};
    for (int i = 1; i < 9; ++i) {
        const Picture other = upright(picture, i);
        check::that(other.pixels == turned[i] && other.height == (i < 5 ? 2 : 3), "orientation " + std::to_string(i));
    }
    const Bytes name = {'E', 'x', 'i', 'f', 0, 0},
                tiff = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0};
    const auto of = [&](const Bytes& exif) { return orientation(joined({{0xFF, 0xD8}, segment(0xE1, exif), end, end})); };
    check::that(of(joined({name, tiff})) == 6, "EXIF");
    for (std::size_t size = 0; size < tiff.size(); ++size)
        check::that(of(joined({name, {tiff.begin(), tiff.begin() + size}})) == 1, "EXIF that ends too early");
    Bytes far = tiff;
    far[4] = far[7] = 0xFF;
    check::that(of(joined({name, far})) == 1, "EXIF that points outside");
}

}  // namespace

int main(int count, char** words) {
    if (count > 1) return dump(count - 1, words + 1);
    check_small_pictures();
    check_headers();
    check_progressions();
    check_orientations();
    return check::result();
}
