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

constexpr std::int64_t longest_side = 1 << 20;  // when resized

// Python's round(), a half to even.
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
    pairs = (count + 3) / 4 * 2;
    split = Array<std::int16_t>((outputs + 1) / 2 * 2 * split_size());
    for (int i = 0; i < outputs; ++i)
        for (int x = 0; x < count; ++x) {
            const std::int32_t weight = weights[static_cast<std::size_t>(i) * count + x];
            std::int16_t* low = split.data() + i / 2 * 2 * split_size() + x / 2 * 32 + i % 2 * 8 + x % 2;
            for (int channel = 0; channel < 3; ++channel) {
                low[2 * channel] = static_cast<std::int16_t>(weight & ((1 << split_bits) - 1));
                low[2 * channel + 16] = static_cast<std::int16_t>(weight >> split_bits);
            }
        }
}

Framing::Framing(const PictureView& picture, const Image& image, const Kernels& kernels)
    : kernels_(kernels),
      high_(picture.height),
      wide_(picture.width),
      channels_(picture.channels),
      height_(image.height),
      width_(image.width) {
    if (picture.channels != image.channels) throw FileError("a picture whose channels are not the model's");
    // In integers: a product of floats may fall below a side that comes out even.
    const std::int64_t high = image.cover_height, wide = image.cover_width;
    const bool tall = high * picture.width <= wide * picture.height;
    const std::int64_t resized_wide = tall ? wide : high * picture.width / picture.height;
    const std::int64_t resized_high = tall ? wide * picture.height / picture.width : high;
    if (std::max(resized_wide, resized_high) > longest_side) throw FileError("a picture too thin to be resized. Cut it first");
    const int width = static_cast<int>(resized_wide), height = static_cast<int>(resized_high);
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

bool Framing::fits(const PictureView& picture) const {
    return picture.height == high_ && picture.width == wide_ && picture.channels == channels_;
}

void Framing::shrink_row(const PictureView& picture, int row) {
    const int channels = channels_;
    const std::uint8_t* from = picture.pixels.data() + static_cast<std::size_t>(first_row_ + row) * wide_ * channels;
    std::uint8_t* to = narrow_.data() + static_cast<std::size_t>(row) * width_ * channels;
    if (keep_width_) {
        std::memcpy(to, from + left_ * channels, static_cast<std::size_t>(width_) * channels);
        return;
    }
    const std::size_t size = static_cast<std::size_t>(wide_) * channels;
    if (from + size + Taps::margin <= picture.pixels.data() + picture.pixels.size()) {
        kernels_.shrink(across_, from, to, width_, channels);
    } else {  // too few bytes behind the last rows
        std::vector<std::uint8_t> copy(from, from + size);
        copy.resize(size + Taps::margin);
        kernels_.shrink(across_, copy.data(), to, width_, channels);
    }
}

void Framing::fill_row(int row, std::uint8_t* pixels) {
    const int line = width_ * channels_;
    std::uint8_t* to = pixels + static_cast<std::size_t>(row) * line;
    if (keep_height_) {
        std::memcpy(to, narrow_.data() + static_cast<std::size_t>(row) * line, line);
        return;
    }
    kernels_.blend(down_.weights.data() + static_cast<std::size_t>(row) * down_.count, down_.count,
                   narrow_.data() + static_cast<std::size_t>(down_.begin[row] - first_row_) * line, to, line);
}

}  // namespace frugalvit
