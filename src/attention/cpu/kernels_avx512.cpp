#include "attention/cpu/kernels-inl.h"
#include "cpu/vector_avx512.h"

namespace headroom::cpu {

const AttentionKernels& attention_kernels_avx512() {
  static constexpr AttentionKernels kKernels = make_attention_kernels<avx512::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
