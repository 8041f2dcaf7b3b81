// The only `if` on the CPU.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "features_x86.h"
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
        const X86Features has;
        if (has.avx2) list[count++] = &avx2_kernels();
        if (has.avx512) list[count++] = &avx512_kernels();
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
