#include "cpu/vector_avx512.h"
#include "ops/cpu/kernels-inl.h"

namespace headroom::cpu {

const OpKernels& op_kernels_avx512() {
  static constexpr OpKernels kKernels = make_op_kernels<avx512::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
