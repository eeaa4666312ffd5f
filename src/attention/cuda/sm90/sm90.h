// Attention on Hopper's tensor cores: the row `sm90`. What is plain C++ of it, so that a machine without CUDA
// plans the same.
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/sm90/block_lists.h"
#include "attention/cuda/sm90/tiles.h"
#include "headroom/attention.h"

namespace headroom::sm90 {

// Where the rows and intervals of a call come from.
enum class Source : std::uint8_t {
  formula,  // all rows, or every rate-th; intervals follow from the place
  tables,   // all rows; intervals are read
  lists,    // rows and intervals are read
};

[[nodiscard]] Source source_of(const AttentionProblem& problem);

// Whether the general kernels serve it, those with a softcap and block lists.
[[nodiscard]] bool is_general(const AttentionProblem& problem);

// The most places of a head.
[[nodiscard]] std::int64_t most_places(const AttentionProblem& problem);

// The workspace of a pass, cut into pieces; without memory, their size.
struct Memory {
  Memory(const AttentionProblem& problem, Pass pass, std::byte* base);

  cuda::RowLists lists;
  cuda::Visits visits;                    // with block lists
  cuda::Visits query_visits;              // of dQ's kernel, where it is apart
  std::int32_t* seen_by_first = nullptr;  // backward with tables or lists
  std::int32_t* seen_by_last = nullptr;
  static constexpr std::int64_t kNextTileBytes = 16;
  std::int32_t* counters = nullptr;  // the next tile to take; then, in backward, turns
  std::int64_t counter_bytes = 0;
  std::int64_t padded_places = 0;
  float* lse_log2 = nullptr;
  float* delta = nullptr;
  float* query_sums = nullptr;  // unless dQ is apart
  std::int64_t query_sums_bytes = 0;
  float* row_shift = nullptr;  // with sinks
  float* row_dot = nullptr;
  float* output = nullptr;  // f32: sums over mixed patterns, or O of one alone
  float* pattern_lse = nullptr;
  float* query_gradient = nullptr;
  float* key_gradient = nullptr;
  float* value_gradient = nullptr;
  bool adds_query_gradient = false;
  bool adds_key_gradients = false;
  std::int64_t bytes = 0;
};

void forward(const AttentionProblem& problem, const AttentionForward& views, const TensorView& workspace,
             const Stream& stream);
void backward(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& workspace,
              const Stream& stream);

}  // namespace headroom::sm90
