// What an x86 processor and its operating system can do, asked of the processor: not every compiler brings the answers along.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>
#include <initializer_list>

namespace frugalvit {

struct X86Features {
    bool avx2 = false, avx512 = false;  // each with all that its kernels are compiled for

    X86Features() {
        const Registers basic = ask(1);
        if (!all_of(basic.c, {27, 28})) return;  // the operating system saves registers; AVX
        const std::uint64_t saved = saved_registers();
        const Registers more = ask(7);
        const bool fma = all_of(basic.c, {12});
        avx2 = (saved & 0x6) == 0x6 && fma && all_of(more.b, {5});
        // F, DQ, BW, VL; VPOPCNTDQ
        avx512 = (saved & 0xe6) == 0xe6 && avx2 && all_of(more.b, {16, 17, 30, 31}) && all_of(more.c, {14});
    }

private:
    struct Registers {
        unsigned a = 0, b = 0, c = 0, d = 0;
    };

    static Registers ask(unsigned leaf) {
        Registers found;
        __get_cpuid_count(leaf, 0, &found.a, &found.b, &found.c, &found.d);  // zeros where there is no such leaf
        return found;
    }
    static std::uint64_t saved_registers() {
        std::uint32_t low, high;
        asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return std::uint64_t{high} << 32 | low;
    }
    static bool all_of(unsigned bits, std::initializer_list<int> wanted) {
        for (const int bit : wanted)
            if (!(bits >> bit & 1)) return false;
        return true;
    }
};

}  // namespace frugalvit

#endif
