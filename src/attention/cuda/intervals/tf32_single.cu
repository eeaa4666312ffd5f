// Apart from tf32.cu, so that both compile at once.
#include "attention/cuda/intervals/tf32-inl.h"

namespace headroom::cuda {

const IntervalKernels& tf32_kernels() {
  static const IntervalKernels kKernels = make_tf32_kernels<1>(portable_kernels());
  return kKernels;
}

}  // namespace headroom::cuda
