// The launches that all rows for GPUs share. None of them multiplies matrices.
#pragma once

#include "attention/cuda/call.h"
#include "headroom/core/stream.h"

namespace headroom::cuda {

struct SharedLaunches {
  void (*write_lists)(const AttentionCall&, const Stream&);     // rows, first, last, counts
  void (*write_seen_by)(const AttentionCall&, const Stream&);   // of those lists
  void (*start_rows)(const AttentionCall&, const Stream&);      // O <- 0, LSE <- sink or -inf
  void (*row_statistics)(const AttentionCall&, const Stream&);  // row_shift, row_dot
  void (*sinks_gradient)(const AttentionCall&, const Stream&);
  void (*zero_counters)(const AttentionCall&, const Stream&);  // next_share, turns
  void (*zero)(const AttentionCall&, const TypedHeadsView&, std::int64_t rows, std::int64_t heads,
               const Stream&);
  void (*narrow)(const AttentionCall&, const TypedHeadsView& to, const TypedHeadsView& from,
                 std::int64_t rows, std::int64_t heads, std::int64_t parts, bool add,
                 const Stream&);  // f32, so many times [batch, ...] one after the other, to any dtype, or
                                  // added to what is there
};

// Compiled by nvcc; a build without CUDA has none.
[[nodiscard]] const SharedLaunches& shared_launches();

}  // namespace headroom::cuda
