#include <algorithm>
#include <cctype>

#include "frugalvit/picture.h"

namespace frugalvit {
namespace {

constexpr int longest_side = 1 << 15;
constexpr std::size_t most_bytes = std::size_t{1} << 28;

class Netpbm {
public:
    explicit Netpbm(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    Picture read() {
        Picture picture;
        if (bytes_.size() < 2 || bytes_[0] != 'P' || (bytes_[1] != '5' && bytes_[1] != '6'))
            throw FileError("of no kind that is read here. Give JPEG, PNG, or binary PPM or PGM");
        picture.channels = bytes_[1] == '6' ? 3 : 1;
        at_ = 2;
        picture.width = side();
        picture.height = side();
        if (number() != 255) throw FileError("a PGM or PPM picture that does not have 8 bits");
        ++at_;
        const std::size_t size = static_cast<std::size_t>(picture.width) * picture.height * picture.channels;
        if (size > most_bytes) refuse_pixels(std::to_string(most_bytes / picture.channels / 1000000) + " million");
        if (at_ > bytes_.size() || bytes_.size() - at_ < size) throw FileError("a PGM or PPM picture that ends too early");
        const auto pixels = bytes_.subspan(at_, size);
        picture.pixels.assign(pixels.begin(), pixels.end());
        return picture;
    }

private:
    int peek() const { return at_ < bytes_.size() ? bytes_[at_] : -1; }

    [[noreturn]] static void refuse_pixels(const std::string& most) {
        throw FileError("a PGM or PPM picture with too many pixels. Make it at most " + most);
    }

    int side() {
        const int value = number();
        if (value > longest_side) refuse_pixels("32,768 a side");
        return value;
    }

    // Large ones are not told from each other.
    int number() {
        while (std::isspace(peek()) || peek() == '#') {
            if (peek() == '#')
                while (peek() != '\n' && peek() != -1) ++at_;
            else ++at_;
        }
        int value = 0;
        if (!std::isdigit(peek())) throw FileError("a PGM or PPM picture with a broken header");
        while (std::isdigit(peek())) {
            value = std::min(value * 10 + (peek() - '0'), 1 << 20);
            ++at_;
        }
        if (value == 0) throw FileError("a PGM or PPM picture without pixels");
        return value;
    }

    std::span<const std::uint8_t> bytes_;
    std::size_t at_ = 0;
};

Picture decode(std::span<const std::uint8_t> bytes, int first) {
    switch (first) {
        case 0x89: return decode_png(bytes);
        case 0xFF: return decode_jpeg(bytes);
        default: return decode_netpbm(bytes);
    }
}

}  // namespace

Picture decode_netpbm(std::span<const std::uint8_t> bytes) { return Netpbm(bytes).read(); }

Picture read_picture(const std::string& path) {
    const std::vector<std::uint8_t> bytes = read_bytes(path);
    const int first = bytes.empty() ? 0 : bytes[0];
    try {
        return upright(decode(bytes, first), orientation(bytes));
    } catch (const FileError& error) {
        throw FileError(path + ": " + error.what() + ".");
    }
}

Picture with_channels(Picture picture, int channels) {
    if (picture.channels == channels) return picture;
    Picture other{picture.height, picture.width, channels, {}};
    const std::size_t count = static_cast<std::size_t>(picture.height) * picture.width;
    other.pixels.reserve(count * channels);
    for (std::size_t i = 0; i < count; ++i) {
        if (channels == 3) {
            other.pixels.insert(other.pixels.end(), 3, picture.pixels[i]);
        } else {
            const std::uint8_t* rgb = picture.pixels.data() + 3 * i;
            other.pixels.push_back(static_cast<std::uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16));
        }
    }
    return other;
}

}  // namespace frugalvit
