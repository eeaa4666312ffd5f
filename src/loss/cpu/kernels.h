// The loss kernels of one instruction set, on a block of logits with tokens side by side: [rows][stride], a
// row per word of the vocabulary. So statistics run along lanes and need no horizontal sums.
#pragma once

#include <cstdint>

#include "headroom/core/device.h"

namespace headroom::cpu {

// Per token; the arrays are as long as the stride.
struct LogitStatistics {
  float* max;
  float* sum;        // of e^(logit - max)
  float* logit_sum;  // of the logits
};

// What turns a logit into its gradient: factor * e^(logit - max) - smoothing, times the softcap's slope.
struct LogitGradient {
  const float* max;
  const float* factor;
  const float* smoothing;
};

// Strides are multiples of the lanes of a vector.
struct LossKernels {
  // The statistics of `rows` rows; with a softcap the logits become capped ones first, in place.
  void (*statistics)(float* logits, std::int64_t rows, std::int64_t stride, float softcap,
                     const LogitStatistics& result);
  // logits <- softcap * tanh(logits / softcap)
  void (*cap)(float* logits, std::int64_t rows, std::int64_t stride, float softcap);
  // Capped logits become their gradients, in place.
  void (*gradient)(float* logits, std::int64_t rows, std::int64_t stride, float softcap,
                   const LogitGradient& rule);
};

[[nodiscard]] const LossKernels& loss_kernels_portable();
[[nodiscard]] const LossKernels& loss_kernels_avx2();
[[nodiscard]] const LossKernels& loss_kernels_avx512();

// Those of a level; the description of a CPU says which it has.
[[nodiscard]] const LossKernels& loss_kernels(SimdLevel level);

}  // namespace headroom::cpu
