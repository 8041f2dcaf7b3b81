// JPEG pictures (ITU T.81): 8 bits, Huffman codes, sequential or progressive; gray, YCbCr, RGB, CMYK and YCCK.
#include "jpeg.h"

#include <algorithm>
#include <cstring>

namespace frugalvit {
namespace jpeg {

void fail(const std::string& what) { throw FileError("a damaged JPEG picture: " + what); }
void fail_early() { throw FileError("a JPEG picture that ends in the middle: the file was cut off"); }
void refuse(const std::string& what) { throw FileError("a JPEG picture with " + what); }

namespace {

constexpr int longest_side = 1 << 15, most_scans = 100, most_blocks_in_unit = 10;
constexpr std::size_t most_samples = std::size_t{1} << 28;
constexpr int smoothed = 10;  // libjpeg invents coefficients below this where a progressive picture lacks bits of them

// What stands between a marker and the next.
class Segment {
public:
    explicit Segment(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    std::size_t left() const { return bytes_.size(); }

    int byte() { return take(1)[0]; }

    int word() {
        const auto two = take(2);
        return two[0] << 8 | two[1];
    }

    std::span<const std::uint8_t> take(std::size_t count) {
        if (count > bytes_.size()) fail("a broken header");
        const auto taken = bytes_.first(count);
        bytes_ = bytes_.subspan(count);
        return taken;
    }

    bool starts_with(const char* text, std::size_t length) const {
        return bytes_.size() >= length && std::memcmp(bytes_.data(), text, length) == 0;
    }

private:
    std::span<const std::uint8_t> bytes_;
};

class Decoder {
public:
    explicit Decoder(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    Picture read() {
        if (bytes_.size() < 3 || bytes_[0] != 0xFF || bytes_[1] != 0xD8 || bytes_[2] != 0xFF)
            throw FileError("not a JPEG picture");
        at_ = 2;
        for (int marker = next_marker(); marker != 0xD9; marker = next_marker()) {
            if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;  // stands alone
            read_segment(marker);
        }
        if (frame_.components.empty()) fail("no pixels");
        for (const Component& component : frame_.components) check_complete(component);
        if (frame_.progressive) finish_progressive(frame_);
        return join(frame_, colors());
    }

private:
    int next_marker() {
        while (at_ + 1 < bytes_.size() && (bytes_[at_] != 0xFF || bytes_[at_ + 1] == 0 || bytes_[at_ + 1] == 0xFF)) ++at_;
        if (at_ + 1 >= bytes_.size()) fail_early();
        at_ += 2;
        return bytes_[at_ - 1];
    }

    void read_segment(int marker) {
        if (bytes_.size() - at_ < 2) fail_early();
        const std::size_t length = static_cast<std::size_t>(bytes_[at_] << 8 | bytes_[at_ + 1]);
        if (length < 2) fail("a broken header");
        if (length > bytes_.size() - at_) fail_early();
        Segment segment(bytes_.subspan(at_ + 2, length - 2));
        at_ += length;
        switch (marker) {
            case 0xC0:
            case 0xC1:
            case 0xC2: read_frame(segment, marker == 0xC2); break;
            case 0xC3: refuse("lossless coding: re-save it as an ordinary JPEG, or as PNG");
            case 0xC5:
            case 0xC6:
            case 0xC7:
            case 0xDE: refuse("hierarchical coding: re-save it as an ordinary JPEG, or as PNG");
            case 0xC4: read_codes(segment); break;
            case 0xC8:
            case 0xC9:
            case 0xCA:
            case 0xCB:
            case 0xCD:
            case 0xCE:
            case 0xCF: refuse("arithmetic coding: re-save it with Huffman coding, or as PNG");
            case 0xD8: fail("another picture inside");
            case 0xDA: read_scan(segment); break;
            case 0xDB: read_quantization(segment); break;
            case 0xDD: restart_interval_ = segment.word(); break;
            case 0xE0: jfif_ = jfif_ || (segment.left() >= 14 && segment.starts_with("JFIF", 5)); break;
            case 0xEE:
                if (segment.left() >= 12 && segment.starts_with("Adobe", 5)) adobe_transform_ = segment.take(12)[11];
                break;
            default: break;
        }
    }

    void read_quantization(Segment segment) {
        while (segment.left()) {
            const int head = segment.byte();
            if ((head & 15) > 3) fail("a broken quantization table");
            auto& table = quantization_[head & 15];
            for (std::uint16_t& factor : table)
                factor = static_cast<std::uint16_t>(head >> 4 ? segment.word() : segment.byte());
            has_quantization_[head & 15] = true;
        }
    }

    void read_codes(Segment segment) {
        while (segment.left()) {
            const int head = segment.byte();
            if (head & ~0x13) fail("a broken Huffman table");
            const auto counts = segment.take(16);
            int total = 0;
            for (const std::uint8_t count : counts) total += count;
            if (total > 256) fail("a broken Huffman table");
            codes_[head >> 4][head & 3] = HuffmanTable(counts.data(), segment.take(total));
        }
    }

    void read_frame(Segment segment, bool progressive) {
        if (!frame_.components.empty()) fail("two frames");
        if (segment.byte() != 8) refuse("more than 8 bits a channel: re-save it with 8 bits");
        frame_.progressive = progressive;
        for (int kind = 0; kind < 2 && !progressive; ++kind)
            for (int number = 0; number < 2; ++number)
                if (codes_[kind][number].empty()) codes_[kind][number] = standard_table(kind, number);
        frame_.height = segment.word();
        frame_.width = segment.word();
        const int count = segment.byte();
        if (count != 1 && count != 3 && count != 4) refuse(std::to_string(count) + " channels: re-save it as RGB or gray");
        if (!frame_.height) refuse("no height in its header: re-save it as an ordinary JPEG, or as PNG");
        if (!frame_.width) fail("no pixels");
        if (frame_.height > longest_side || frame_.width > longest_side ||
            static_cast<std::size_t>(frame_.height) * frame_.width * count > most_samples)
            refuse("too many pixels: at most 32,768 a side, and 89 million in colors");
        std::vector<Component> components(count);
        for (Component& component : components) {
            component.id = segment.byte();
            const int factors = segment.byte();
            component.across = factors >> 4;
            component.down = factors & 15;
            component.table = segment.byte();
            if (component.across < 1 || component.across > 4 || component.down < 1 || component.down > 4 || component.table > 3)
                fail("a broken header");
            frame_.across = std::max(frame_.across, component.across);
            frame_.down = std::max(frame_.down, component.down);
        }
        std::size_t blocks = 0;
        for (Component& component : components) {
            if (frame_.across % component.across || frame_.down % component.down)
                refuse("colors sampled at uneven places: re-save it as an ordinary JPEG, or as PNG");
            component.width = (frame_.width * component.across + frame_.across - 1) / frame_.across;
            component.height = (frame_.height * component.down + frame_.down - 1) / frame_.down;
            component.blocks_across = (component.width + 7) / 8;
            component.blocks_down = (component.height + 7) / 8;
            component.missing.fill(-1);
            blocks += static_cast<std::size_t>(component.blocks_across) * component.blocks_down;
        }
        if (blocks / 8 > bytes_.size()) fail_early();  // a block takes at least one bit
        for (Component& component : components) {
            component.stride = static_cast<std::size_t>(frame_.units_across()) * component.across * 8;
            const std::size_t size = component.stride * frame_.units_down() * component.down * 8;
            component.samples.resize(size);
            if (progressive) component.coefficients.resize(size);
        }
        frame_.components = std::move(components);
    }

    void read_scan(Segment segment) {
        if (frame_.components.empty()) fail("no header before its pixels");
        if (++scans_ > most_scans) refuse("more than " + std::to_string(most_scans) + " scans: re-save it");
        Scan scan;
        const int count = segment.byte();
        if (count < 1 || count > static_cast<int>(frame_.components.size())) fail("a broken scan");
        int blocks = 0;
        for (int i = 0; i < count; ++i) {
            const int id = segment.byte(), tables = segment.byte();
            Component& component = find(scan, id);
            if ((tables >> 4) > 3 || (tables & 15) > 3) fail("a broken scan");
            scan.parts.push_back({&component, &codes_[0][tables >> 4], &codes_[1][tables & 15]});
            blocks += component.across * component.down;
        }
        if (count > 1 && blocks > most_blocks_in_unit) fail("a broken scan");
        scan.first = segment.byte();
        scan.last = segment.byte();
        const int bits = segment.byte();
        scan.high = bits >> 4;
        scan.low = bits & 15;
        for (const Scan::Part& part : scan.parts) start(scan, part);
        at_ = decode_scan(frame_, scan, restart_interval_, bytes_, at_);
    }

    Component& find(const Scan& scan, int id) {
        for (Component& component : frame_.components) {
            const auto same = [&](const Scan::Part& part) { return part.component == &component; };
            if (component.id == id && std::none_of(scan.parts.begin(), scan.parts.end(), same)) return component;
        }
        fail("a broken scan");
    }

    // Checks that the component may come in this scan, and that the scan's tables are there.
    void start(const Scan& scan, const Scan::Part& part) {
        Component& component = *part.component;
        if (!component.started) {
            if (!has_quantization_[component.table]) fail("no quantization table");
            component.quantization = quantization_[component.table];
        } else if (!frame_.progressive) {
            fail("pixels come twice");
        }
        component.started = true;
        const bool dc = !frame_.progressive || (scan.first == 0 && scan.high == 0);
        const bool ac = !frame_.progressive || scan.first > 0;
        if ((dc && part.dc->empty()) || (ac && part.ac->empty())) fail("no Huffman table");
        if (dc && part.dc->largest() > 15) fail("a broken Huffman table");
        if (!frame_.progressive) return;
        const bool band =
            scan.first == 0 ? scan.last == 0 : scan.first <= scan.last && scan.last < 64 && scan.parts.size() == 1;
        if (!band || scan.low > 13 || (scan.high && scan.high != scan.low + 1)) fail("a broken scan");
        for (int k = scan.first; k <= scan.last; ++k) {
            if (component.missing[k] != (scan.high ? scan.high : -1)) fail("scans out of order");
            component.missing[k] = static_cast<std::int8_t>(scan.low);
        }
    }

    void check_complete(const Component& component) const {
        bool complete = component.started;
        if (frame_.progressive)
            for (int k = 0; k < smoothed; ++k)
                complete = complete && component.missing[k] >= 0 && (!k || !component.missing[k]);
        if (!complete) fail("scans are missing, or it was cut off");
    }

    Colors colors() const {
        const auto& components = frame_.components;
        if (components.size() == 1) return Colors::gray;
        if (components.size() == 4) return adobe_transform_ < 1 ? Colors::cmyk : Colors::ycck;
        if (jfif_) return Colors::ycc;
        if (adobe_transform_ >= 0) return adobe_transform_ ? Colors::ycc : Colors::rgb;
        return components[0].id == 'R' && components[1].id == 'G' && components[2].id == 'B' ? Colors::rgb : Colors::ycc;
    }

    std::span<const std::uint8_t> bytes_;
    std::size_t at_ = 0;
    Frame frame_;
    int scans_ = 0, restart_interval_ = 0;
    std::array<std::array<std::uint16_t, 64>, 4> quantization_{};
    std::array<bool, 4> has_quantization_{};
    std::array<std::array<HuffmanTable, 4>, 2> codes_;  // of first coefficients, and of all others
    bool jfif_ = false;
    int adobe_transform_ = -1;  // -1: no such marker
};

}  // namespace
}  // namespace jpeg

Picture decode_jpeg(std::span<const std::uint8_t> bytes) { return jpeg::Decoder(bytes).read(); }

}  // namespace frugalvit
