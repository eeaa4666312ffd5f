// What the rows of the table that work on intervals bring to the sequence: the launches that multiply.
#pragma once

#include "attention/cuda/call.h"
#include "headroom/core/device.h"
#include "headroom/core/stream.h"

namespace headroom::cuda {

struct IntervalKernels {
  void (*forward)(const AttentionCall&, const Stream&);
  void (*backward)(const AttentionCall&, const Stream&);  // dQ, added; dK and dV
};

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const IntervalKernels& portable_kernels();
[[nodiscard]] const IntervalKernels& tf32x3_kernels();
[[nodiscard]] const IntervalKernels& tf32_kernels();  // operands rounded to tf32; runs only where it is named
[[nodiscard]] const IntervalKernels& bf16x3_kernels();

// Shared memory that one block may have, by compute capability.
[[nodiscard]] std::int64_t block_shared_bytes(const DeviceDescription& device);

}  // namespace headroom::cuda
