// Apart from tf32.cu, so that both compile at once.
#include "attention/cuda/intervals/tf32-inl.h"

namespace headroom::cuda {

const IntervalKernels& tf32_kernels() {
  static constexpr IntervalKernels kKernels = make_interval_kernels<Tf32SingleTiles>();
  return kKernels;
}

}  // namespace headroom::cuda
