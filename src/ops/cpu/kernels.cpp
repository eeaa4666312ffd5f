#include "ops/cpu/kernels.h"

#include "cpu/levels.h"
#include "ops/cpu/matmul_kernels.h"

namespace headroom::cpu {

const OpKernels& op_kernels(SimdLevel level) {
  return at_level(level, op_kernels_avx512, op_kernels_avx2, op_kernels_portable)();
}

const MatmulKernels& matmul_kernels(SimdLevel level) {
  return at_level(level, matmul_kernels_avx512, matmul_kernels_avx2, matmul_kernels_portable)();
}

}  // namespace headroom::cpu
