// The only `if` on the CPU.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "frugalvit/kernels.h"

namespace frugalvit {

#if defined(FRUGALVIT_X86)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#elif defined(FRUGALVIT_NEON)
const Kernels& neon_kernels();
#endif

const Kernels* const* available_kernels() {
    static const Kernels* list[4] = {};
    static const bool filled = [] {
        int count = 0;
        list[count++] = &reference_kernels();
#if defined(FRUGALVIT_X86)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &avx2_kernels();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vpopcntdq"))
            list[count++] = &avx512_kernels();
#elif defined(FRUGALVIT_NEON)
        list[count++] = &neon_kernels();
#endif
        return true;
    }();
    (void)filled;
    return list;
}

const Kernels& select_kernels() {
    const Kernels* best = nullptr;
    const char* wanted = std::getenv("FRUGALVIT_KERNEL");
    std::string names;
    for (const Kernels* const* each = available_kernels(); *each; ++each) {
        if (wanted && std::string(wanted) == (*each)->name) return **each;
        names += std::string(names.empty() ? "" : ", ") + (*each)->name;
        best = *each;
    }
    if (wanted && *wanted)
        throw std::invalid_argument("FRUGALVIT_KERNEL: no kernels '" + std::string(wanted) + "' on this CPU. Use one of " +
                                    names);
    return *best;
}

}  // namespace frugalvit
