#include "attention/cuda/intervals/tf32-inl.h"

namespace headroom::cuda {

const IntervalKernels& tf32x3_kernels() {
  static constexpr IntervalKernels kKernels = make_interval_kernels<Tf32x3Tiles>();
  return kKernels;
}

}  // namespace headroom::cuda
