#include "attention/cuda/intervals/portable-inl.h"

namespace headroom::cuda {

const IntervalKernels& portable_kernels() {
  static constexpr IntervalKernels kKernels = make_interval_kernels<PortableTiles>();
  return kKernels;
}

}  // namespace headroom::cuda
