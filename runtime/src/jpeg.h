// What the parts of the JPEG decoder share. The numbers and the order of arithmetic are libjpeg's, so that pictures have the
// same bytes as Pillow's.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "frugalvit/picture.h"

namespace frugalvit::jpeg {

[[noreturn]] void fail(const std::string& what);    // it is damaged: it has ...
[[noreturn]] void fail_early();                     // the file ends in the middle of it
[[noreturn]] void refuse(const std::string& what);  // it has ..., which is right, but not read here

// The place of the k-th coefficient of a file in a block of 8 rows.
inline constexpr std::array<std::uint8_t, 64> zigzag = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                                        12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                                        35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                                        58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

struct Component {
    int id = 0, across = 1, down = 1, table = 0;  // across and down: its blocks in a unit of all components
    int width = 0, height = 0;                    // in samples
    int blocks_across = 0, blocks_down = 0;
    std::size_t stride = 0;  // samples a row, padded to whole units
    std::vector<std::uint8_t> samples;

    bool started = false;                          // by a scan
    std::array<std::uint16_t, 64> quantization{};  // in the file's order
    // Of progressive pictures: all blocks, and for each coefficient the low bits still missing, or -1 where there is nothing.
    std::vector<std::int16_t> coefficients;
    std::array<std::int8_t, 64> missing;

    std::size_t padded_blocks_across() const { return stride / 8; }
};

struct Frame {
    int width = 0, height = 0;
    bool progressive = false;
    int across = 1, down = 1;  // the most of any component
    std::vector<Component> components;

    int units_across() const { return (width + 8 * across - 1) / (8 * across); }
    int units_down() const { return (height + 8 * down - 1) / (8 * down); }
};

class HuffmanTable {
public:
    static constexpr int fast_bits = 9;

    HuffmanTable() = default;
    HuffmanTable(const std::uint8_t* counts, std::span<const std::uint8_t> symbols);  // counts of lengths 1 to 16

    bool empty() const { return symbols_.empty(); }
    std::uint8_t largest() const;

private:
    friend class Bits;

    std::array<std::uint16_t, 1 << fast_bits> fast_{};  // length << 8 | symbol, or 0 where the code is longer
    std::array<std::int32_t, 17> last_{}, offset_{};    // of each length: its last code (-1: none), and symbol minus code
    std::vector<std::uint8_t> symbols_;
};

// The table of first coefficients (kind 0) or of all others (1) that a sequential picture means where it has none; 0 or 1.
HuffmanTable standard_table(int kind, int number);

// The bits of a scan. Behind its end come zeros, and `check` says so.
class Bits {
public:
    Bits(std::span<const std::uint8_t> bytes, std::size_t at) : bytes_(bytes), at_(at) {}

    int symbol(const HuffmanTable& table) {
        refill();
        const std::uint32_t entry = table.fast_[look(HuffmanTable::fast_bits)];
        if (!entry) return long_symbol(table);
        held_ -= static_cast<int>(entry >> 8);
        return static_cast<int>(entry & 0xFF);
    }

    // After a symbol, up to 15 bits need no refill.
    int more(int count) {
        const int value = look(count);
        held_ -= count;
        return value;
    }

    // A number of `count` bits whose first bit is its sign.
    int number(int count) {
        const int value = more(count);
        return value < 1 << (count - 1) ? value - (1 << count) + 1 : value;
    }

    int bit() {
        refill();
        return more(1);
    }

    void check() const {
        if (held_ < padding_) fail_end();
    }

    void restart(int number);               // past restart marker `number`
    std::size_t at() const { return at_; }  // a place at or before the marker that ends the scan

private:
    int look(int count) const { return static_cast<int>(buffer_ >> (held_ - count) & ((1u << count) - 1)); }

    void refill() {
        if (held_ >= 32) return;
        if (bytes_.size() - at_ >= 4) {
            const std::uint8_t* next = bytes_.data() + at_;
            const std::uint32_t word = static_cast<std::uint32_t>(next[0]) << 24 | static_cast<std::uint32_t>(next[1]) << 16 |
                                       static_cast<std::uint32_t>(next[2]) << 8 | next[3];
            if (!((~word - 0x01010101u) & word & 0x80808080u)) {  // no byte is 0xFF
                buffer_ = buffer_ << 32 | word;
                held_ += 32;
                at_ += 4;
                return;
            }
        }
        refill_bytes();
    }

    void refill_bytes();
    int long_symbol(const HuffmanTable& table);
    [[noreturn]] void fail_end() const;

    std::span<const std::uint8_t> bytes_;
    std::size_t at_;
    std::uint64_t buffer_ = 0;    // its low `held_` bits
    int held_ = 0, padding_ = 0;  // bits; of padding, all that there ever were
};

struct Scan {
    struct Part {
        Component* component;
        const HuffmanTable *dc, *ac;
        int before = 0;  // the last block's first coefficient
    };
    std::vector<Part> parts;
    int first = 0, last = 63;  // coefficients
    int high = 0, low = 0;     // the bits missing before this scan (0: all) and after it
};

// Decodes a scan from `at`, into samples or, of progressive pictures, into coefficients. Returns a place at or before the
// marker that ends it.
std::size_t decode_scan(const Frame&, Scan&, int restart_interval, std::span<const std::uint8_t> bytes, std::size_t at);
void finish_progressive(Frame&);  // from coefficients to samples

// Multiplied coefficients, row by row, to 8 x 8 samples.
void inverse_transform(const std::int16_t* coefficients, std::uint8_t* samples, std::size_t stride);
void fill_block(int coefficient, std::uint8_t* samples, std::size_t stride);  // where all but the first are 0

enum class Colors { gray, ycc, rgb, cmyk, ycck };
Picture join(const Frame&, Colors);  // full size, gray or RGB

}  // namespace frugalvit::jpeg
