// AVX-512 with VPOPCNTDQ: a panel is one register.
#if defined(__AVX512VPOPCNTDQ__)

#include <immintrin.h>

#include "lanes_avx2.h"
#include "panel_attention.h"
#include "panel_grid.h"
#include "panel_kernels.h"
#include "panel_mlp.h"
#include "panel_resize.h"

namespace frugalvit {
namespace {

struct Avx512 {
    using Reals = __m512;
    using Integers = __m512i;
    using Mask = __mmask16;
    using Count = __m512i;
    using Table = __m512;

    static constexpr int rows = 8;         // that share a load of weights
    static constexpr int kept_words = 8;   // of weights in registers
    static constexpr int real_panels = 2;  // of a real product at a time

    static Reals load(const float* from) { return _mm512_loadu_ps(from); }
    static Integers load(const std::uint32_t* from) { return _mm512_loadu_si512(from); }
    static void store(float* to, Reals x) { _mm512_storeu_ps(to, x); }
    static void store(std::uint32_t* to, Integers x) { _mm512_storeu_si512(to, x); }
    static Reals every(float x) { return _mm512_set1_ps(x); }
    static Integers every(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
    // x[index] of R rows, index below 32 * pairs, to rows that are `lanes` apart: permutes are several times faster than a
    // gather.
    template <int R>
    static void spread(const float* x, int stride, const std::int32_t* index, int pairs, float* to) {
        if (pairs == 1) spread_pairs<R, 1>(x, stride, index, to);
        else if (pairs == 2) spread_pairs<R, 2>(x, stride, index, to);
        else if (pairs == 4) spread_pairs<R, 4>(x, stride, index, to);
        else
            for (int r = 0; r < R; ++r)
                for (int lane = 0; lane < lanes; ++lane) to[r * lanes + lane] = x[r * stride + index[lane]];
    }
    template <int R, int pairs>
    static void spread_pairs(const float* x, int stride, const std::int32_t* index, float* to) {
        const Integers wanted = _mm512_loadu_si512(index), pair = _mm512_srli_epi32(wanted, 5);
        Mask here[pairs];
        for (int i = 0; i < pairs; ++i) here[i] = _mm512_cmpeq_epi32_mask(pair, _mm512_set1_epi32(i));
        for (int r = 0; r < R; ++r, x += stride, to += lanes) {
            Reals out = _mm512_permutex2var_ps(load(x), wanted, load(x + lanes));
            for (int i = 1; i < pairs; ++i)
                out = _mm512_mask_mov_ps(
                    out, here[i], _mm512_permutex2var_ps(load(x + 2 * i * lanes), wanted, load(x + (2 * i + 1) * lanes)));
            store(to, out);
        }
    }

    static Reals add(Reals a, Reals b) { return _mm512_add_ps(a, b); }
    static Reals sub(Reals a, Reals b) { return _mm512_sub_ps(a, b); }
    static Reals multiply(Reals a, Reals b) { return _mm512_mul_ps(a, b); }
    static Reals fma(Reals a, Reals b, Reals c) { return _mm512_fmadd_ps(a, b, c); }
    static Reals to_real(Integers x) { return _mm512_cvtepi32_ps(x); }

    static Mask less(Reals a, Reals b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static Reals select(Mask mask, Reals yes, Reals no) { return _mm512_mask_blend_ps(mask, no, yes); }
    static std::uint32_t mask_bits(Mask mask) { return mask; }
    static std::uint32_t mask_bits(Mask low, Mask high) { return _cvtmask32_u32(_mm512_kunpackw(high, low)); }
    static Reals first(Reals x, int count) { return _mm512_maskz_mov_ps(static_cast<Mask>((1u << count) - 1), x); }

    static Integers exclusive_or(Integers a, Integers b) { return _mm512_xor_si512(a, b); }
    static Integers both(Integers a, Integers b) { return _mm512_and_si512(a, b); }
    static Integers less_twice(Integers a, Integers b) { return _mm512_sub_epi32(_mm512_sub_epi32(a, b), b); }
    static Integers sixteenth(Integers x) { return _mm512_srli_epi32(x, 4); }
    // Bit j of to[i] is bit i of from[j].
    static void transpose(const std::uint16_t* from, std::uint32_t* to) {
        const Integers all = _mm512_loadu_si512(from);
        Integers bit = _mm512_set1_epi16(1);
        for (int lane = 0; lane < lanes; ++lane, bit = _mm512_add_epi16(bit, bit))
            to[lane] = _cvtmask32_u32(_mm512_test_epi16_mask(all, bit));
    }

    static constexpr int most_counted = 1 << 30;
    static Count begin_count(Integers total) { return total; }
    static void count(Count& count, Integers x) { count = _mm512_add_epi32(count, _mm512_popcnt_epi32(x)); }
    static Integers end_count(Count count, Integers) { return count; }
    static constexpr bool balances = true;
    static void count_down(Count& count, Integers x) { count = _mm512_sub_epi32(count, _mm512_popcnt_epi32(x)); }

    static Table table(const float* sixteen) { return load(sixteen); }
    static Reals lookup(Table table, Integers index) { return _mm512_permutexvar_ps(index, table); }  // index % 16
    static float sum_in_halves(Reals x) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

}  // namespace

namespace {

// Half registers with room for as many rows as whole ones.
struct Half : Avx2 {
    static constexpr int rows = 8;
};

// Long products are worth a lower clock.
void real_by_depth(const Real& step, const float* x, const float* positions, float* y, int rows) {
    if (step.in < 256) real<Half>(step, x, positions, y, rows);
    else real<Avx512>(step, x, positions, y, rows);
}

}  // namespace

// Steps that do nothing but arithmetic on reals take half registers: they wait for memory anyway, and many 512-bit
// multiplications in a row make Intel's processors lower their clock by a fifth, for all steps that follow. The means of a
// merge were enough for that.
const Kernels& avx512_kernels() {
    static const Kernels kernels{"avx512",
                                 affine<Half>,
                                 add<Half>,
                                 linear<Avx512>,
                                 mlp<Avx512>,
                                 sign_attention<Avx512>,
                                 pack_attention<Avx512>,
                                 attention<Avx512>,
                                 pool<Half>,
                                 cross<Half>,
                                 merge<Avx512, Half>,
                                 real_by_depth,
                                 head<Half>,
                                 shrink<Half>,
                                 blend<Half>};
    return kernels;
}

}  // namespace frugalvit

#endif
