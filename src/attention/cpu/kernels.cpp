#include "attention/cpu/kernels.h"

#include "cpu/levels.h"

namespace headroom::cpu {

const AttentionKernels& attention_kernels(SimdLevel level) {
  return at_level(level, attention_kernels_avx512, attention_kernels_avx2, attention_kernels_portable)();
}

}  // namespace headroom::cpu
