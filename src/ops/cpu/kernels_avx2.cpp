#include "cpu/vector_avx2.h"
#include "ops/cpu/kernels-inl.h"

namespace headroom::cpu {

const OpKernels& op_kernels_avx2() {
  static constexpr OpKernels kKernels = make_op_kernels<avx2::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
