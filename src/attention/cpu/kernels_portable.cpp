#include "attention/cpu/kernels-inl.h"
#include "cpu/vector_portable.h"

namespace headroom::cpu {

const AttentionKernels& attention_kernels_portable() {
  static constexpr AttentionKernels kKernels = make_attention_kernels<portable::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
