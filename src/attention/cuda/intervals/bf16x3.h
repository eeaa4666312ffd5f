// f32 attention on Hopper's tensor cores in three bf16 parts (split_tiles.cuh): the row `bf16x3`.
#pragma once

#include "attention/cuda/call.h"

namespace headroom::cuda {

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const IntervalKernels& bf16x3_kernels();

}  // namespace headroom::cuda
