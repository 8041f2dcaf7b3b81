// NEON (AArch64): a panel is four registers.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "panel_attention.h"
#include "panel_grid.h"
#include "panel_kernels.h"
#include "panel_mlp.h"
#include "panel_resize.h"

namespace frugalvit {
namespace {

struct Neon {
    struct Reals {
        float32x4_t part[4];
    };
    struct Integers {
        uint32x4_t part[4];
    };
    struct Count {
        uint8x16_t part[4];  // numbers of bits, in bytes
    };
    using Mask = Integers;
    using Table = const float*;

    static constexpr int rows = 4;         // that share a load of weights
    static constexpr int kept_words = 2;   // of weights in registers
    static constexpr int real_panels = 1;  // of a real product at a time

    template <class Out, class Each>
    static Out each(Each&& each) {
        Out out;
        for (int i = 0; i < 4; ++i) out.part[i] = each(i);
        return out;
    }

    static Reals load(const float* from) {
        return each<Reals>([&](int i) { return vld1q_f32(from + 4 * i); });
    }
    static Integers load(const std::uint32_t* from) {
        return each<Integers>([&](int i) { return vld1q_u32(from + 4 * i); });
    }
    static void store(float* to, const Reals& x) {
        for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, x.part[i]);
    }
    static void store(std::uint32_t* to, const Integers& x) {
        for (int i = 0; i < 4; ++i) vst1q_u32(to + 4 * i, x.part[i]);
    }
    static Reals every(float x) {
        return each<Reals>([&](int) { return vdupq_n_f32(x); });
    }
    static Integers every(std::uint32_t x) {
        return each<Integers>([&](int) { return vdupq_n_u32(x); });
    }
    template <int R>
    static void spread(const float* x, int stride, const std::int32_t* index, int, float* to) {
        for (int r = 0; r < R; ++r, x += stride, to += lanes)
            for (int lane = 0; lane < lanes; ++lane) to[lane] = x[index[lane]];
    }

    static Reals add(const Reals& a, const Reals& b) {
        return each<Reals>([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
    }
    static Reals sub(const Reals& a, const Reals& b) {
        return each<Reals>([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
    }
    static Reals multiply(const Reals& a, const Reals& b) {
        return each<Reals>([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
    }
    static Reals fma(const Reals& a, const Reals& b, const Reals& c) {
        return each<Reals>([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
    }
    static Reals to_real(const Integers& x) {
        return each<Reals>([&](int i) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x.part[i])); });
    }

    static Mask less(const Reals& a, const Reals& b) {
        return each<Mask>([&](int i) { return vcltq_f32(a.part[i], b.part[i]); });
    }
    static Reals select(const Mask& mask, const Reals& yes, const Reals& no) {
        return each<Reals>([&](int i) { return vbslq_f32(mask.part[i], yes.part[i], no.part[i]); });
    }
    static std::uint32_t mask_bits(const Mask& mask) {
        alignas(16) static constexpr std::uint32_t places[4] = {1, 2, 4, 8};
        const uint32x4_t place = vld1q_u32(places);
        std::uint32_t bits = 0;
        for (int i = 0; i < 4; ++i) bits |= vaddvq_u32(vandq_u32(mask.part[i], place)) << (4 * i);
        return bits;
    }
    static std::uint32_t mask_bits(const Mask& low, const Mask& high) { return mask_bits(low) | mask_bits(high) << 16; }
    static Reals first(const Reals& x, int count) {
        static constexpr float place[lanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        return select(less(load(place), every(static_cast<float>(count))), x, every(0.0f));
    }

    static Integers exclusive_or(const Integers& a, const Integers& b) {
        return each<Integers>([&](int i) { return veorq_u32(a.part[i], b.part[i]); });
    }
    static Integers both(const Integers& a, const Integers& b) {
        return each<Integers>([&](int i) { return vandq_u32(a.part[i], b.part[i]); });
    }
    static Integers less_twice(const Integers& a, const Integers& b) {
        return each<Integers>([&](int i) { return vsubq_u32(vsubq_u32(a.part[i], b.part[i]), b.part[i]); });
    }
    static Integers sixteenth(const Integers& x) {
        return each<Integers>([&](int i) { return vshrq_n_u32(x.part[i], 4); });
    }
    static void transpose(const std::uint16_t* from, std::uint32_t* to) {
        static constexpr std::uint32_t four[4] = {1, 2, 4, 8};
        Integers column = every(std::uint32_t{0});
        for (int bit = 0; bit < 32; ++bit)
            for (int i = 0; i < 4; ++i) {
                const uint32x4_t set = vtstq_u32(vdupq_n_u32(static_cast<std::uint32_t>(from[bit]) >> 4 * i), vld1q_u32(four));
                column.part[i] = vorrq_u32(column.part[i], vandq_u32(set, vdupq_n_u32(1u << bit)));
            }
        store(to, column);
    }

    static constexpr bool balances = false;
    static constexpr int most_counted = 31;  // a byte holds 31 * 8
    static Count begin_count(const Integers&) {
        return each<Count>([&](int) { return vdupq_n_u8(0); });
    }
    static void count(Count& count, const Integers& x) {
        for (int i = 0; i < 4; ++i) count.part[i] = vaddq_u8(count.part[i], vcntq_u8(vreinterpretq_u8_u32(x.part[i])));
    }
    static Integers end_count(const Count& count, const Integers& total) {
        return each<Integers>([&](int i) { return vaddq_u32(total.part[i], vpaddlq_u16(vpaddlq_u8(count.part[i]))); });
    }

    static int32x4_t widen(const std::uint8_t* four) {
        std::uint32_t bytes;
        std::memcpy(&bytes, four, sizeof bytes);
        const uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
        return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
    }

    static constexpr bool shrinks_pairs = false;

    static Table table(const float* sixteen) { return sixteen; }
    static Reals lookup(Table table, const Integers& index) {
        std::uint32_t places[lanes];
        float found[lanes];
        store(places, index);
        for (int lane = 0; lane < lanes; ++lane) found[lane] = table[places[lane] % 16];
        return load(found);
    }
    static float sum_in_halves(const Reals& x) {
        const float32x4_t four = vaddq_f32(vaddq_f32(x.part[0], x.part[2]), vaddq_f32(x.part[1], x.part[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
};

}  // namespace

const Kernels& neon_kernels() {
    static const Kernels kernels{
        "neon",          affine<Neon>, add<Neon>,   linear<Neon>, mlp<Neon>,  sign_attention<Neon>, pack_attention<Neon>,
        attention<Neon>, pool<Neon>,   cross<Neon>, merge<Neon>,  real<Neon>, head<Neon>,           shrink<Neon>,
        blend<Neon>};
    return kernels;
}

}  // namespace frugalvit

#endif
