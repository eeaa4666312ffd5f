#include "cpu/vector_avx512.h"
#include "ops/cpu/matmul-inl.h"

namespace headroom::cpu {

const MatmulKernels& matmul_kernels_avx512() {
  static constexpr MatmulKernels kKernels = make_matmul_kernels<avx512::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
