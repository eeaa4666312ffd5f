#include "cpu/vector_portable.h"
#include "loss/cpu/kernels-inl.h"

namespace headroom::cpu {

const LossKernels& loss_kernels_portable() {
  static constexpr LossKernels kKernels = make_loss_kernels<portable::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
