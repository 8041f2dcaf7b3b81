// How a camera was held: the EXIF of JPEG and PNG pictures, or else their XMP, as Pillow looks for it.
#include <algorithm>
#include <optional>
#include <string_view>

#include "frugalvit/picture.h"

namespace frugalvit {
namespace {

using std::string_view;

constexpr string_view exif_name("Exif\0\0", 6), xmp_name("http://ns.adobe.com/xap/1.0/\0", 29);

std::uint32_t big_endian(string_view bytes) {
    std::uint32_t value = 0;
    for (const char byte : bytes) value = value << 8 | static_cast<std::uint8_t>(byte);
    return value;
}

// The orientation in the first directory of a TIFF header.
std::optional<int> in_exif(string_view exif) {
    for (int i = 0; i < 2 && exif.starts_with(exif_name); ++i) exif.remove_prefix(exif_name.size());
    if (exif.size() < 8) return {};
    const string_view order = exif.substr(0, 2), version = exif.substr(2, 2);
    const bool little = order == "II";
    if ((!little && order != "MM") || (version != string_view("*\0", 2) && version != string_view("\0*", 2))) return {};
    const auto number = [&](std::size_t at, std::size_t size) {
        std::string bytes(exif.substr(at, size));
        if (little) std::reverse(bytes.begin(), bytes.end());
        return big_endian(bytes);
    };
    const std::size_t start = number(4, 4);
    if (start > exif.size() - 2) return {};
    std::optional<int> found;
    std::size_t at = start + 2;
    for (std::uint32_t left = number(start, 2); left > 0 && exif.size() - at >= 12; --left, at += 12) {
        if (number(at, 2) != 0x0112 || number(at + 4, 4) != 1) continue;
        const std::uint32_t type = number(at + 2, 2);
        if (type == 3) found = static_cast<int>(number(at + 8, 2));
        if (type == 4) found = static_cast<int>(std::min(number(at + 8, 4), 9u));
    }
    return found;
}

int in_xmp(string_view xmp) {
    constexpr string_view name = "tiff:Orientation";
    for (std::size_t at = xmp.find(name); at != string_view::npos; at = xmp.find(name, at + 1)) {
        string_view rest = xmp.substr(at + name.size());
        if (rest.starts_with("=\"")) rest.remove_prefix(2);
        else if (rest.starts_with(">")) rest.remove_prefix(1);
        else continue;
        if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
    }
    return 1;
}

struct Notes {
    std::string exif, xmp;
};

Notes notes_of_jpeg(string_view file) {
    Notes notes;
    std::size_t at = 2;
    while (file.size() - at >= 4) {
        const auto marker = static_cast<std::uint8_t>(file[at + 1]);
        if (file[at] != '\xFF' || marker == 0 || marker == 0xFF) {
            ++at;
            continue;
        }
        if (marker == 0xDA || marker == 0xD9) break;
        at += 2;
        if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) continue;
        const std::size_t length = big_endian(file.substr(at, 2));
        if (length < 2 || length > file.size() - at) break;
        const string_view data = file.substr(at + 2, length - 2);
        if (marker == 0xE1 && data.starts_with(exif_name))
            notes.exif += notes.exif.empty() ? data : data.substr(exif_name.size());
        if (marker == 0xE1 && data.starts_with(xmp_name)) notes.xmp = data.substr(xmp_name.size());
        at += length;
    }
    return notes;
}

Notes notes_of_png(string_view file) {
    constexpr string_view xmp_key("XML:com.adobe.xmp\0\0", 19);  // the second zero: not compressed
    Notes notes;
    for (std::size_t at = 8; at <= file.size() && file.size() - at >= 12;) {
        const std::size_t length = big_endian(file.substr(at, 4));
        if (length > file.size() - at - 12) break;
        const string_view kind = file.substr(at + 4, 4), data = file.substr(at + 8, length);
        if (kind == "eXIf") notes.exif = data;
        if (kind == "iTXt" && data.starts_with(xmp_key)) notes.xmp = data.substr(xmp_key.size());
        at += length + 12;
    }
    return notes;
}

}  // namespace

int orientation(std::span<const std::uint8_t> bytes) {
    const string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Notes notes;
    if (file.starts_with("\xFF\xD8")) notes = notes_of_jpeg(file);
    else if (file.starts_with("\x89PNG")) notes = notes_of_png(file);
    const int found = in_exif(notes.exif).value_or(in_xmp(notes.xmp));
    return found >= 1 && found <= 8 ? found : 1;
}

Picture upright(Picture picture, int orientation) {
    if (orientation == 1) return picture;
    const bool turned = orientation >= 5;
    const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    Picture other{turned ? picture.width : picture.height, turned ? picture.height : picture.width, picture.channels, {}};
    other.pixels.reserve(picture.pixels.size());
    for (int y = 0; y < other.height; ++y)
        for (int x = 0; x < other.width; ++x) {
            const int along = turned ? x : y, beside = turned ? y : x;
            const std::size_t row = from_below ? picture.height - 1 - along : along;
            const std::size_t column = from_right ? picture.width - 1 - beside : beside;
            const std::uint8_t* pixel = picture.pixels.data() + (row * picture.width + column) * picture.channels;
            other.pixels.insert(other.pixels.end(), pixel, pixel + picture.channels);
        }
    return other;
}

}  // namespace frugalvit
