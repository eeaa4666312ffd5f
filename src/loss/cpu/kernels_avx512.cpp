#include "cpu/vector_avx512.h"
#include "loss/cpu/kernels-inl.h"

namespace headroom::cpu {

const LossKernels& loss_kernels_avx512() {
  static constexpr LossKernels kKernels = make_loss_kernels<avx512::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
