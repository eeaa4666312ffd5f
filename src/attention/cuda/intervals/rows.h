// The rows of the table whose kernels work on intervals: `portable` on the FMA units of any GPU from compute
// capability 6.0; in f32 `tf32x3` and `tf32` on tensor cores from 8.0, and `bf16x3` on Hopper's.
#pragma once

#include "attention/cuda/intervals/kernels.h"
#include "attention/cuda/sequence.h"

namespace headroom::cuda {

struct IntervalWorkspace : Workspace {
  IntervalWorkspace(const AttentionProblem& problem, Pass pass, std::byte* base);

  std::int32_t* next_share = nullptr;
  std::int32_t* turns = nullptr;
  std::int64_t turns_per_head = 0;
};

void forward_on_intervals(const AttentionProblem& problem, const AttentionForward& views,
                          const TensorView& workspace, const SharedLaunches& shared,
                          const IntervalKernels& kernels, const Stream& stream);
void backward_on_intervals(const AttentionProblem& problem, const AttentionBackward& views,
                           const TensorView& workspace, const SharedLaunches& shared,
                           const IntervalKernels& kernels, const Stream& stream);

}  // namespace headroom::cuda
