// f32 attention on tensor cores from compute capability 8.0: the row `tf32x3`, and `tf32`, which rounds
// operands to tf32 and runs only where it is named.
#pragma once

#include "attention/cuda/call.h"

namespace headroom::cuda {

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const IntervalKernels& tf32x3_kernels();
[[nodiscard]] const IntervalKernels& tf32_kernels();

}  // namespace headroom::cuda
