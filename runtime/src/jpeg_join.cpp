// From the samples of each component to pixels: upsampling and colors.
#include <algorithm>

#include "jpeg.h"

namespace frugalvit::jpeg {
namespace {

std::uint8_t narrow(int value) { return static_cast<std::uint8_t>(value); }
std::uint8_t clamped(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

// The rows of a component at full size. Twofold upsampling weighs the two nearest samples 3 : 1 in each direction, any other
// repeats samples; halves are rounded down and up in turns.
class Rows {
public:
    Rows(const Frame& frame, const Component& component)
        : component_(component),
          across_(frame.across / component.across),
          down_(frame.down / component.down),
          weighs_across_(across_ == 2 && component.width > 2 && down_ <= 2),
          weighs_down_(down_ == 2 && (across_ == 1 || weighs_across_)),
          out_(static_cast<std::size_t>(component.width) * across_),
          sums_(static_cast<std::size_t>(component.width) + 2) {}

    const std::uint8_t* row(int y) {
        if (across_ == 1 && down_ == 1) return samples(y);
        if (weighs_across_) return weighs_down_ ? both_ways(y) : sideways(y);
        if (weighs_down_) return downward(y);
        const std::uint8_t* in = samples(y / down_);
        for (int x = 0; x < component_.width; ++x)
            std::fill_n(out_.data() + static_cast<std::size_t>(x) * across_, across_, in[x]);
        return out_.data();
    }

private:
    const std::uint8_t* samples(int y) const {
        return component_.samples.data() + std::clamp(y, 0, component_.height - 1) * component_.stride;
    }

    const std::uint8_t* other(int y) const { return samples(y % 2 ? y / 2 + 1 : y / 2 - 1); }

    const std::uint8_t* downward(int y) {
        const std::uint8_t *near = samples(y / 2), *far = other(y);
        const int rounding = y % 2 ? 2 : 1;
        for (int x = 0; x < component_.width; ++x) out_[x] = narrow((3 * near[x] + far[x] + rounding) >> 2);
        return out_.data();
    }

    const std::uint8_t* sideways(int y) {
        const std::uint8_t* in = samples(y);
        for (int x = 0; x < component_.width; ++x) sums_[x + 1] = in[x];
        return widened(1, 2, 2);
    }

    const std::uint8_t* both_ways(int y) {
        const std::uint8_t *near = samples(y / 2), *far = other(y);
        for (int x = 0; x < component_.width; ++x) sums_[x + 1] = static_cast<std::uint16_t>(3 * near[x] + far[x]);
        return widened(8, 7, 4);
    }

    const std::uint8_t* widened(int rounding_left, int rounding_right, int shift) {
        const int width = component_.width;
        sums_[0] = sums_[1];
        sums_[width + 1] = sums_[width];
        const std::uint16_t* sums = sums_.data() + 1;
        std::uint8_t* out = out_.data();
        for (int x = 0; x < width; ++x) {
            out[2 * x] = narrow((3 * sums[x] + sums[x - 1] + rounding_left) >> shift);
            out[2 * x + 1] = narrow((3 * sums[x] + sums[x + 1] + rounding_right) >> shift);
        }
        return out_.data();
    }

    const Component& component_;
    int across_, down_;
    bool weighs_across_, weighs_down_;
    std::vector<std::uint8_t> out_;
    std::vector<std::uint16_t> sums_;
};

// JFIF's equations: red = y + 1.402 cr, green = y - 0.34414 cb - 0.71414 cr, blue = y + 1.772 cb, with 16 fractional bits and
// whole multiples taken out, so that products have 16-bit factors.
void to_rgb(int width, const std::uint8_t* const* in, std::uint8_t* red, std::uint8_t* green, std::uint8_t* blue) {
    for (int x = 0; x < width; ++x) {
        const auto y = in[0][x];
        const auto cb = static_cast<std::int16_t>(in[1][x] - 128), cr = static_cast<std::int16_t>(in[2][x] - 128);
        red[x] = clamped(y + cr + ((26345 * cr + 32768) >> 16));
        green[x] = clamped(y - cr + ((18734 * cr - 22554 * cb + 32768) >> 16));
        blue[x] = clamped(y + 2 * cb + ((-14942 * cb + 32768) >> 16));
    }
}

// What is seen of an ink under black, as Pillow rounds it. Both are stored inverted, as Adobe does: 255 is none.
std::uint8_t seen(int ink, int black) {
    const int product = (255 - ink) * black + 128;
    return narrow(black - ((product + (product >> 8)) >> 8));
}

class Painter {
public:
    Painter(Colors colors, int width) : colors_(colors), width_(width), planes_(static_cast<std::size_t>(width) * 3) {}

    void row(const std::uint8_t* const* in, std::uint8_t* out) {
        if (colors_ == Colors::gray) {
            std::copy_n(in[0], width_, out);
            return;
        }
        const std::uint8_t* rgb[3] = {in[0], in[1], in[2]};
        if (colors_ == Colors::ycc || colors_ == Colors::ycck) {
            to_rgb(width_, in, plane(0), plane(1), plane(2));
            for (int c = 0; c < 3; ++c) rgb[c] = plane(c);
        }
        if (colors_ == Colors::ycc || colors_ == Colors::rgb) {
            for (int x = 0; x < width_; ++x)
                for (int c = 0; c < 3; ++c) out[3 * x + c] = rgb[c][x];
        } else {
            const int inverted = colors_ == Colors::ycck ? 255 : 0;
            for (int x = 0; x < width_; ++x)
                for (int c = 0; c < 3; ++c) out[3 * x + c] = seen(rgb[c][x] ^ inverted, in[3][x]);
        }
    }

private:
    std::uint8_t* plane(int c) { return planes_.data() + static_cast<std::size_t>(c) * width_; }

    Colors colors_;
    int width_;
    std::vector<std::uint8_t> planes_;
};

}  // namespace

Picture join(const Frame& frame, Colors colors) {
    Picture picture{frame.height, frame.width, colors == Colors::gray ? 1 : 3, {}};
    const std::size_t line = static_cast<std::size_t>(frame.width) * picture.channels;
    picture.pixels.resize(line * frame.height);
    std::vector<Rows> rows;
    for (const Component& component : frame.components) rows.emplace_back(frame, component);
    Painter painter(colors, frame.width);
    for (int y = 0; y < frame.height; ++y) {
        const std::uint8_t* in[4] = {};
        for (std::size_t i = 0; i < rows.size(); ++i) in[i] = rows[i].row(y);
        painter.row(in, picture.pixels.data() + y * line);
    }
    return picture;
}

}  // namespace frugalvit::jpeg
