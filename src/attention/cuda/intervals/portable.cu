#include "attention/cuda/intervals/portable-inl.h"

namespace headroom::cuda {

const IntervalKernels& portable_kernels() {
  static const IntervalKernels kKernels = make_portable_kernels();
  return kKernels;
}

}  // namespace headroom::cuda
