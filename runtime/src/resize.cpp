// Pillow's antialiased resizing in fixed point, to the byte (its src/libImaging/Resample.c).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "frugalvit/picture.h"

namespace frugalvit {
namespace {

double bicubic(double x) {
    constexpr double a = -0.5;
    x = std::abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

double bilinear(double x) { return std::max(0.0, 1 - std::abs(x)); }

// Python's int(a * b), and round() to even of a half.
int floor_of(double x) { return static_cast<int>(x); }
int round_to_even(double x) { return static_cast<int>(std::nearbyint(x)); }

}  // namespace

Taps::Taps(int in, int out, int first, int outputs, const std::string& filter) {
    const bool cubic = filter == "bicubic";
    const double scale = static_cast<double>(in) / out, stretch = std::max(scale, 1.0);
    const double support = (cubic ? 2.0 : 1.0) * stretch;
    count = std::min(in, static_cast<int>(std::ceil(support)) * 2 + 1);
    weights.resize(static_cast<std::size_t>(outputs) * count);
    std::vector<double> exact(count);
    for (int i = 0; i < outputs; ++i) {
        const double center = (first + i + 0.5) * scale;
        const int low = std::max(0, static_cast<int>(center - support + 0.5));
        const int high = std::min(in, static_cast<int>(center + support + 0.5));
        double total = 0;
        for (int x = low; x < high; ++x) {
            const double distance = (x - center + 0.5) * (1.0 / stretch);
            exact[x - low] = cubic ? bicubic(distance) : bilinear(distance);
            total += exact[x - low];
        }
        begin.push_back(std::min(low, in - count));  // inputs outside low ... high have weight 0
        std::int32_t* weight = weights.data() + static_cast<std::size_t>(i) * count + (low - begin.back());
        for (int x = 0; x < high - low; ++x) {
            const double share = (total != 0 ? exact[x] / total : exact[x]) * (1 << precision);
            weight[x] = static_cast<std::int32_t>(share < 0 ? share - 0.5 : share + 0.5);
        }
    }
}

Framing::Framing(const Picture& picture, const Image& image, const Kernels& kernels)
    : picture_(picture), kernels_(kernels), height_(image.height), width_(image.width) {
    if (picture.channels != image.channels) throw FileError("a picture whose channels are not the model's");
    const double scale = std::max(static_cast<double>(image.cover_height) / picture.height,
                                  static_cast<double>(image.cover_width) / picture.width);
    const double wide = picture.width * scale, high = picture.height * scale;
    if (wide > 1 << 20 || high > 1 << 20) throw FileError("a picture too thin to be resized");
    const int width = std::max(image.cover_width, floor_of(wide)), height = std::max(image.cover_height, floor_of(high));
    left_ = round_to_even((width - width_) / 2.0);
    top_ = round_to_even((height - height_) / 2.0);
    keep_width_ = width == picture.width;
    keep_height_ = height == picture.height;
    if (!keep_width_) across_ = Taps(picture.width, width, left_, width_, image.filter);
    if (!keep_height_) {
        down_ = Taps(picture.height, height, top_, height_, image.filter);
        first_row_ = down_.begin.front();
        row_count_ = down_.begin.back() + down_.count - first_row_;
    } else {
        first_row_ = top_;
        row_count_ = height_;
    }
    narrow_.resize(static_cast<std::size_t>(row_count_) * width_ * picture.channels);
}

void Framing::shrink_row(int row) {
    const int channels = picture_.channels;
    const std::uint8_t* from = picture_.pixels.data() + static_cast<std::size_t>(first_row_ + row) * picture_.width * channels;
    std::uint8_t* to = narrow_.data() + static_cast<std::size_t>(row) * width_ * channels;
    if (keep_width_) {
        std::memcpy(to, from + left_ * channels, static_cast<std::size_t>(width_) * channels);
    } else if (first_row_ + row < picture_.height - 1) {
        kernels_.shrink(across_, from, to, width_, channels);
    } else {  // no byte behind the last row
        std::vector<std::uint8_t> copy(from, from + static_cast<std::size_t>(picture_.width) * channels);
        copy.push_back(0);
        kernels_.shrink(across_, copy.data(), to, width_, channels);
    }
}

void Framing::fill_row(int row, std::uint8_t* pixels) {
    const int line = width_ * picture_.channels;
    std::uint8_t* to = pixels + static_cast<std::size_t>(row) * line;
    if (keep_height_) {
        std::memcpy(to, narrow_.data() + static_cast<std::size_t>(row) * line, line);
        return;
    }
    kernels_.blend(down_.weights.data() + static_cast<std::size_t>(row) * down_.count, down_.count,
                   narrow_.data() + static_cast<std::size_t>(down_.begin[row] - first_row_) * line, to, line);
}

}  // namespace frugalvit
