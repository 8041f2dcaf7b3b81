// The inverse cosine transform of Loeffler, Ligtenberg and Moschytz (1989) with 13 fractional bits: libjpeg's "islow". Sums of
// inputs have 16 bits and wrap, and what lies between the passes is clamped (it wraps too where only the first row is not 0),
// as in libjpeg-turbo's vector code: this matters only for numbers that no encoder writes.
#include <algorithm>

#include "jpeg.h"

namespace frugalvit::jpeg {
namespace {

constexpr int fixed(double value) { return static_cast<int>(value * 8192 + 0.5); }

std::uint32_t times(std::int16_t value, int factor) { return static_cast<std::uint32_t>(value * factor); }
std::int16_t sum(int a, int b) { return static_cast<std::int16_t>(a + b); }

// Transforms every column; rows stay rows.
template <int shift, int least, int most>
void columns(const std::int16_t* in, std::int16_t* out) {
    constexpr int c1 = fixed(0.541196100), c2 = fixed(0.765366865), c3 = fixed(1.847759065), c4 = fixed(1.175875602);
    constexpr int d0 = fixed(0.298631336), d1 = fixed(2.053119869), d2 = fixed(3.072711026), d3 = fixed(1.501321110);
    constexpr int e1 = fixed(0.899976223), e2 = fixed(2.562915447), e3 = fixed(1.961570560), e4 = fixed(0.390180644);
    constexpr std::uint32_t half = 1u << (shift - 1);
    for (int i = 0; i < 8; ++i) {
        const std::int16_t x0 = in[i], x1 = in[8 + i], x2 = in[16 + i], x3 = in[24 + i];
        const std::int16_t x4 = in[32 + i], x5 = in[40 + i], x6 = in[48 + i], x7 = in[56 + i];

        const std::uint32_t even2 = times(x2, c1) + times(x6, c1 - c3), even3 = times(x2, c1 + c2) + times(x6, c1);
        const std::uint32_t even0 = times(sum(x0, x4), 8192) + half, even1 = times(sum(x0, -x4), 8192) + half;

        const std::int16_t z3 = sum(x7, x3), z4 = sum(x5, x1);
        const std::uint32_t odd3 = times(z3, c4 - e3) + times(z4, c4), odd4 = times(z3, c4) + times(z4, c4 - e4);
        const std::uint32_t odd[4] = {times(x1, d3 - e1) + times(x7, -e1) + odd4, times(x3, d2 - e2) + times(x5, -e2) + odd3,
                                      times(x5, d1 - e2) + times(x3, -e2) + odd4, times(x7, d0 - e1) + times(x1, -e1) + odd3};
        const std::uint32_t even[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
        for (int k = 0; k < 4; ++k) {
            const auto near = static_cast<std::int32_t>(even[k] + odd[k]) >> shift;
            const auto far = static_cast<std::int32_t>(even[k] - odd[k]) >> shift;
            out[8 * k + i] = static_cast<std::int16_t>(std::clamp(near, least, most));
            out[8 * (7 - k) + i] = static_cast<std::int16_t>(std::clamp(far, least, most));
        }
    }
}

}  // namespace

void inverse_transform(const std::int16_t* coefficients, std::uint8_t* samples, std::size_t stride) {
    alignas(16) std::int16_t high[64], turned[64], wide[64];
    int others = 0;
    for (int i = 8; i < 64; ++i) others |= coefficients[i];
    if (others) {
        columns<11, -32768, 32767>(coefficients, high);
        for (int row = 0; row < 8; ++row)
            for (int i = 0; i < 8; ++i) turned[8 * i + row] = high[8 * row + i];
    } else {
        for (int i = 0; i < 8; ++i) std::fill_n(turned + 8 * i, 8, static_cast<std::int16_t>(coefficients[i] * 4));
    }
    columns<18, -128, 127>(turned, wide);
    for (int row = 0; row < 8; ++row)
        for (int i = 0; i < 8; ++i) samples[row * stride + i] = static_cast<std::uint8_t>(wide[8 * i + row] + 128);
}

void fill_block(int coefficient, std::uint8_t* samples, std::size_t stride) {
    const auto high = static_cast<std::int16_t>(coefficient * 4);
    const auto value = static_cast<std::uint8_t>(std::clamp((high + 16) >> 5, -128, 127) + 128);
    for (int row = 0; row < 8; ++row) std::fill_n(samples + row * stride, 8, value);
}

}  // namespace frugalvit::jpeg
