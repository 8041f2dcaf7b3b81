// Pictures of 8-bit pixels, and how they come to a model's size.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frugalvit/program.h"

namespace frugalvit {

struct Picture {
    int height = 0, width = 0, channels = 0;  // channels: 1 or 3, next to each other
    std::vector<std::uint8_t> pixels;
};

Picture read_picture(const std::string& path);  // binary PPM or PGM, or PNG; throws FileError
Picture decode_netpbm(std::span<const std::uint8_t> bytes);
Picture decode_png(std::span<const std::uint8_t> bytes);
Picture with_channels(Picture, int channels);  // gray to three equal channels, or RGB to luma as Pillow has it

// Resizes so that the model's cover is just covered, and cuts the center; the same bytes as Pillow gives.
// First every row of `rows()` through `shrink_row`, then every row of the image through `fill_row`.
class Framing {
public:
    Framing(const Picture&, const Image&, const Kernels&);

    int rows() const { return row_count_; }
    void shrink_row(int row);
    void fill_row(int row, std::uint8_t* pixels);  // of the whole image

private:
    const Picture& picture_;
    const Kernels& kernels_;
    int height_, width_;
    bool keep_width_, keep_height_;
    int first_row_ = 0, row_count_ = 0, left_ = 0, top_ = 0;
    Taps across_, down_;
    std::vector<std::uint8_t> narrow_;
};

}  // namespace frugalvit
