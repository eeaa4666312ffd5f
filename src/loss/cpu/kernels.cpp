#include "loss/cpu/kernels.h"

#include "cpu/levels.h"

namespace headroom::cpu {

const LossKernels& loss_kernels(SimdLevel level) {
  return at_level(level, loss_kernels_avx512, loss_kernels_avx2, loss_kernels_portable)();
}

}  // namespace headroom::cpu
