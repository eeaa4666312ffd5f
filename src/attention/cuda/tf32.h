// f32 attention on tensor cores from compute capability 8.0: the row `tf32x3`.
#pragma once

#include "attention/cuda/call.h"

namespace headroom::cuda {

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const IntervalKernels& tf32x3_kernels();

}  // namespace headroom::cuda
