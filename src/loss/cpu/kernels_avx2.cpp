#include "cpu/vector_avx2.h"
#include "loss/cpu/kernels-inl.h"

namespace headroom::cpu {

const LossKernels& loss_kernels_avx2() {
  static constexpr LossKernels kKernels = make_loss_kernels<avx2::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
