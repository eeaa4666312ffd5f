// The compiled Hopper kernels of one dtype and head size, behind plain function pointers.
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/sm90/calls.h"
#include "headroom/core/dtype.h"

namespace headroom::sm90 {

struct Kernels {
  DType dtype;
  int head_dim;
  void (*forward)(const ForwardCall&, int blocks, cudaStream_t);
  // Null where a larger head's are used.
  void (*before_backward)(const BeforeCall&, cudaStream_t);
  void (*backward)(const BackwardCall&, int blocks, cudaStream_t);
  // dQ: where it is apart, by a kernel of its own; elsewhere from the sums that backward leaves.
  void (*backward_queries)(const QueriesCall&, int blocks, cudaStream_t);
  void (*after_backward)(const AfterCall&, bool general, cudaStream_t);
};

// Throws where this build leaves the head size out.
[[nodiscard]] const Kernels& kernels(DType dtype, int head_dim);

// seen_by <- the queries that see each key place, where intervals are tables; `lists` of them, [lists, ...]
void write_seen_by(const Intervals& seen, const int* query_counts, int queries, int lists, int capacity,
                   int* first, int* last, cudaStream_t stream);

// to <- the call's block lists, one per query head
void copy_lists(const cuda::AttentionCall& call, const cuda::BlockLists& to, const Stream& stream);
// visits <- what those lists come to in tiles
void write_visits(const cuda::AttentionCall& call, const cuda::Visits& visits, const Stream& stream);

}  // namespace headroom::sm90
