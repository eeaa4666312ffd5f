#include "attention/cpu/kernels-inl.h"
#include "cpu/vector_avx2.h"

namespace headroom::cpu {

const AttentionKernels& attention_kernels_avx2() {
  static constexpr AttentionKernels kKernels = make_attention_kernels<avx2::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
