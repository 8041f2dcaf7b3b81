#if defined(__AVX2__)

#include "lanes_avx2.h"
#include "panel_attention.h"
#include "panel_grid.h"
#include "panel_kernels.h"
#include "panel_mlp.h"
#include "panel_resize.h"

namespace frugalvit {

const Kernels& avx2_kernels() {
    static const Kernels kernels{
        "avx2",          affine<Avx2>, add<Avx2>,   linear<Avx2>, mlp<Avx2>,  sign_attention<Avx2>, pack_attention<Avx2>,
        attention<Avx2>, pool<Avx2>,   cross<Avx2>, merge<Avx2>,  real<Avx2>, head<Avx2>,           shrink<Avx2>,
        blend<Avx2>};
    return kernels;
}

}  // namespace frugalvit

#endif
