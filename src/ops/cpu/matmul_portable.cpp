#include "cpu/vector_portable.h"
#include "ops/cpu/matmul-inl.h"

namespace headroom::cpu {

const MatmulKernels& matmul_kernels_portable() {
  static constexpr MatmulKernels kKernels = make_matmul_kernels<portable::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
