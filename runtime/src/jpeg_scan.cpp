// Scans: sequential ones give finished blocks; progressive ones give a band of coefficients, or one more bit of them.
#include <algorithm>

#include "jpeg.h"

namespace frugalvit::jpeg {
namespace {

std::int16_t narrow(int value) { return static_cast<std::int16_t>(value); }

// Calls `block(part, row, column)` for every block of the scan in the order of the file.
template <class Block>
std::size_t each_block(const Frame& frame, Scan& scan, int interval, Bits bits, Block block) {
    const bool alone = scan.parts.size() == 1;
    const Component& only = *scan.parts[0].component;
    const int across = alone ? only.blocks_across : frame.units_across();
    const int down = alone ? only.blocks_down : frame.units_down();
    int left = interval, restarts = 0;
    for (int row = 0; row < down; ++row) {
        for (int column = 0; column < across; ++column) {
            if (interval && left-- == 0) {
                bits.restart(restarts++ % 8);
                for (Scan::Part& part : scan.parts) part.before = 0;
                block.restart();
                left = interval - 1;
            }
            if (alone) {
                block(bits, scan.parts[0], row, column);
                bits.check();
                continue;
            }
            for (Scan::Part& part : scan.parts)
                for (int y = 0; y < part.component->down; ++y)
                    for (int x = 0; x < part.component->across; ++x) {
                        block(bits, part, row * part.component->down + y, column * part.component->across + x);
                        bits.check();
                    }
        }
    }
    return bits.at();
}

int next_dc(Bits& bits, Scan::Part& part) {
    const int length = bits.symbol(*part.dc);
    if (length) part.before += bits.number(length);
    if (part.before != narrow(part.before)) fail("a broken coefficient");
    return part.before;
}

struct Sequential {
    void restart() {}

    void operator()(Bits& bits, Scan::Part& part, int row, int column) {
        Component& component = *part.component;
        const auto& factors = component.quantization;
        std::uint8_t* samples = component.samples.data() + row * 8 * component.stride + column * 8;
        const std::int16_t first = narrow(next_dc(bits, part) * factors[0]);
        int k = next_coefficient(bits, *part.ac, 0);
        if (k > 63) return fill_block(first, samples, component.stride);
        alignas(16) std::int16_t block[64] = {first};
        for (; k < 64; k = next_coefficient(bits, *part.ac, k)) block[zigzag[k]] = narrow(value_ * factors[k]);
        inverse_transform(block, samples, component.stride);
    }

private:
    // The place of the next coefficient, which is in value_; 64 behind the last.
    int next_coefficient(Bits& bits, const HuffmanTable& table, int k) {
        while (++k < 64) {
            const int code = bits.symbol(table);
            const int length = code & 15;
            if (!length && code != 0xF0) return 64;
            k += code >> 4;
            if (!length) continue;
            if (k > 63) fail("too many coefficients");
            value_ = bits.number(length);
            return k;
        }
        return 64;
    }

    int value_ = 0;
};

std::int16_t* block_at(Component& component, int row, int column) {
    return component.coefficients.data() + (row * component.padded_blocks_across() + column) * 64;
}

struct FirstDc {
    int low;

    void restart() {}
    void operator()(Bits& bits, Scan::Part& part, int row, int column) {
        *block_at(*part.component, row, column) = narrow(next_dc(bits, part) * (1 << low));
    }
};

struct NextDc {
    int low;

    void restart() {}
    void operator()(Bits& bits, Scan::Part& part, int row, int column) {
        if (bits.bit()) *block_at(*part.component, row, column) |= narrow(1 << low);
    }
};

// Both kinds of scans of other coefficients end a run of blocks by one symbol.
struct Band {
    int first, last, low;
    int ended = 0;  // blocks still to come that this scan adds nothing to

    void restart() { ended = 0; }
    void end(Bits& bits, int run) { ended = (1 << run) + bits.more(run); }
};

struct FirstBand : Band {
    void operator()(Bits& bits, Scan::Part& part, int row, int column) {
        if (ended) {
            --ended;
            return;
        }
        std::int16_t* block = block_at(*part.component, row, column);
        for (int k = first; k <= last; ++k) {
            const int code = bits.symbol(*part.ac);
            const int run = code >> 4, length = code & 15;
            if (!length && run < 15) {
                end(bits, run);
                --ended;
                return;
            }
            k += run;
            if (!length) continue;
            if (k > last) fail("too many coefficients");
            block[zigzag[k]] = narrow(bits.number(length) * (1 << low));
        }
    }
};

struct NextBand : Band {
    void operator()(Bits& bits, Scan::Part& part, int row, int column) {
        std::int16_t* block = block_at(*part.component, row, column);
        int k = first;
        for (; k <= last && !ended; ++k) {
            const int code = bits.symbol(*part.ac);
            int run = code >> 4, value = 0;
            if (code & 15) {
                if ((code & 15) != 1) fail("a broken coefficient");
                value = bits.more(1) ? 1 << low : -(1 << low);
            } else if (run < 15) {
                end(bits, run);
                break;
            }
            k = skip(bits, block, k, run);
            if (!value) continue;
            if (k > last) fail("too many coefficients");
            block[zigzag[k]] = narrow(value);
        }
        if (!ended) return;
        skip(bits, block, k, 64);
        --ended;
    }

private:
    // Refines what is there already, past `run` zeros, and returns the place of the zero behind them.
    int skip(Bits& bits, std::int16_t* block, int k, int run) {
        for (; k <= last; ++k) {
            std::int16_t& there = block[zigzag[k]];
            if (!there) {
                if (--run < 0) break;
            } else if (bits.bit() && !(there & 1 << low)) {
                there = narrow(there + (there > 0 ? 1 << low : -(1 << low)));
            }
        }
        return k;
    }
};

}  // namespace

std::size_t decode_scan(const Frame& frame, Scan& scan, int restart_interval, std::span<const std::uint8_t> bytes,
                        std::size_t at) {
    const auto run = [&](auto block) { return each_block(frame, scan, restart_interval, Bits(bytes, at), block); };
    if (!frame.progressive) return run(Sequential{});
    if (scan.first == 0) return scan.high ? run(NextDc{scan.low}) : run(FirstDc{scan.low});
    const Band band{scan.first, scan.last, scan.low};
    return scan.high ? run(NextBand{band}) : run(FirstBand{band});
}

void finish_progressive(Frame& frame) {
    for (Component& component : frame.components) {
        std::uint16_t factors[64];
        for (int k = 0; k < 64; ++k) factors[zigzag[k]] = component.quantization[k];
        for (int row = 0; row < component.blocks_down; ++row)
            for (int column = 0; column < component.blocks_across; ++column) {
                const std::int16_t* block = block_at(component, row, column);
                std::uint8_t* samples = component.samples.data() + row * 8 * component.stride + column * 8;
                alignas(16) std::int16_t multiplied[64];
                int others = 0;
                for (int i = 0; i < 64; ++i) {
                    multiplied[i] = narrow(block[i] * factors[i]);
                    others |= i ? block[i] : 0;
                }
                if (others) inverse_transform(multiplied, samples, component.stride);
                else fill_block(multiplied[0], samples, component.stride);
            }
    }
}

}  // namespace frugalvit::jpeg
