// Pictures: decoding, and with arguments HEIGHT WIDTH COVER_HEIGHT COVER_WIDTH FILTER PICTURE the framed pixels to standard
// output, or with the argument `kernels` the names of those that this CPU runs.
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "frugalvit/picture.h"

namespace {

using namespace frugalvit;

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

int frame(char** words) {
    const Picture picture = read_picture(words[6]);
    Image image{};
    image.height = std::atoi(words[1]);
    image.width = std::atoi(words[2]);
    image.channels = picture.channels;
    image.cover_height = std::atoi(words[3]);
    image.cover_width = std::atoi(words[4]);
    image.filter = words[5];
    Framing framing(picture, image, select_kernels());
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(image.height) * image.width * image.channels);
    for (int row = 0; row < framing.rows(); ++row) framing.shrink_row(picture, row);
    for (int row = 0; row < image.height; ++row) framing.fill_row(row, pixels.data());
    std::fwrite(pixels.data(), 1, pixels.size(), stdout);
    return 0;
}

int name_kernels() {
    for (const Kernels* const* each = available_kernels(); *each; ++each) std::printf("%s\n", (*each)->name);
    return 0;
}

}  // namespace

int main(int count, char** words) {
    if (count == 7) return frame(words);
    if (count == 2 && std::strcmp(words[1], "kernels") == 0) return name_kernels();
    const Picture gray = decode_netpbm(bytes_of("P5 # a comment\n2 1\n255\nab"));
    check::that(gray.width == 2 && gray.height == 1 && gray.channels == 1 && gray.pixels == bytes_of("ab"), "PGM");
    const Picture color = with_channels(gray, 3);
    check::that(color.pixels == bytes_of("aaabbb"), "gray as three channels");
    check::that(with_channels(color, 1).pixels == gray.pixels, "three equal channels as gray");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P6 2 2 255\nabc")); }, "too early");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P6 99999 2 255\n")); }, "too many pixels. Make it at most 32,768");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P5 2 999999999999 255\n")); }, "at most 32,768 a side");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P6 10000 10000 255\n")); }, "pixels. Make it at most 89 million");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P5 20000 20000 255\n")); }, "pixels. Make it at most 268 million");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P5 10000 10000 255\n")); }, "too early");
    check::refuses<FileError>([] { decode_netpbm(bytes_of("P6 2 2 65535\n")); }, "8 bits");
    check::refuses<FileError>([] { decode_png(bytes_of("\x89PNG")); }, "no signature");
    Image small{};
    small.height = small.width = small.cover_height = small.cover_width = 64;
    small.channels = 1;
    small.filter = "bicubic";
    const std::vector<std::uint8_t> pixels(1 << 16);
    const auto framed = [&](int height, int width) { Framing({height, width, 1, pixels.data()}, small, select_kernels()); };
    framed(2, 1 << 15);  // 2^20 wide when resized
    check::refuses<FileError>([&] { framed(1, (1 << 14) + 1); }, "too thin to be resized. Cut it first");
    return check::result();
}
