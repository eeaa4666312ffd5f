// Merging and closing partial results of attention on a GPU.
#pragma once

#include "attention/cuda/call.h"
#include "headroom/core/stream.h"

namespace headroom::cuda {

struct MergeSide {
  TypedHeadsView output;  // f32
  float* lse = nullptr;
  std::int64_t batch_stride = 0;  // of lse
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

struct MergeCall {
  MergeSide into;
  MergeSide from;
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int32_t head_dim = 0;
};

// Rows of which some are open (headroom/attention.h), and where their output goes.
struct CloseCall {
  MergeSide partial;
  TypedHeadsView output;
  const double* row_sum = nullptr;
  std::int64_t batch_stride = 0;  // of row_sum
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int32_t head_dim = 0;
};

// Compiled by nvcc; a build without CUDA has none.
void merge_partials(const MergeCall& call, const Stream& stream);
void close_partial(const CloseCall& call, const Stream& stream);

}  // namespace headroom::cuda
