#include "attention/cuda/intervals/tf32-inl.h"

namespace headroom::cuda {

const IntervalKernels& tf32x3_kernels() {
  static const IntervalKernels kKernels = make_tf32_kernels<3>(portable_kernels());
  return kKernels;
}

}  // namespace headroom::cuda
