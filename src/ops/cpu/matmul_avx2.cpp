#include "cpu/vector_avx2.h"
#include "ops/cpu/matmul-inl.h"

namespace headroom::cpu {

const MatmulKernels& matmul_kernels_avx2() {
  static constexpr MatmulKernels kKernels = make_matmul_kernels<avx2::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
