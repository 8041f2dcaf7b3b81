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

// A picture in somebody else's memory.
struct PictureView {
    int height, width, channels;
    std::span<const std::uint8_t> pixels;

    PictureView(const Picture& picture)
        : height(picture.height), width(picture.width), channels(picture.channels), pixels(picture.pixels) {}
    PictureView(int height, int width, int channels, const std::uint8_t* first)
        : height(height),
          width(width),
          channels(channels),
          pixels(first, static_cast<std::size_t>(height) * width * channels) {}
};

// JPEG, PNG, or binary PPM or PGM, by content; upright by its EXIF or XMP. Throws FileError.
Picture read_picture(const std::string& path);
Picture decode_netpbm(std::span<const std::uint8_t> bytes);
Picture decode_png(std::span<const std::uint8_t> bytes);
Picture decode_jpeg(std::span<const std::uint8_t> bytes);  // the same bytes as Pillow gives
int orientation(std::span<const std::uint8_t> bytes);      // what EXIF calls it, of JPEG or PNG; 1 is upright
Picture upright(Picture, int orientation);
Picture with_channels(Picture, int channels);  // gray to three equal channels, or RGB to luma as Pillow has it

// Resizes so that the model's cover is just covered, and cuts the center; the same bytes as Pillow gives.
// First every row of `rows()` through `shrink_row`, then every row of the image through `fill_row`. For pictures of one size.
class Framing {
public:
    Framing(const PictureView&, const Image&, const Kernels&);

    bool fits(const PictureView&) const;
    int rows() const { return row_count_; }
    void shrink_row(const PictureView&, int row);
    void fill_row(int row, std::uint8_t* pixels);  // of the whole image

private:
    const Kernels& kernels_;
    int high_, wide_, channels_;  // of pictures
    int height_, width_;          // of the image
    bool keep_width_, keep_height_;
    int first_row_ = 0, row_count_ = 0, left_ = 0, top_ = 0;
    Taps across_, down_;
    std::vector<std::uint8_t> narrow_;
};

}  // namespace frugalvit
