// Attention on the FMA units of any GPU from compute capability 6.0: the row `portable`.
#pragma once

#include "attention/cuda/call.h"
#include "headroom/core/device.h"

namespace headroom::cuda {

// Shared memory that one block may have, by compute capability.
[[nodiscard]] std::int64_t block_shared_bytes(const DeviceDescription& device);

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const IntervalKernels& portable_kernels();

}  // namespace headroom::cuda
