// The compiled Hopper kernels of one dtype and head size, behind plain function pointers.
#pragma once

#include "attention/cuda/sm90/calls.h"
#include "headroom/core/dtype.h"
#include "headroom/core/stream.h"

namespace headroom::cuda::sm90 {

// Of two kernels the first is the plain one and the second the general one, as Plan::general counts.
struct Kernels {
  DType dtype;
  int head_dim;
  void (*forward[2])(const ForwardCall&, int blocks, const Stream&) = {};
  void (*before_backward)(const BeforeCall&, const Stream&) = nullptr;
  void (*backward[2])(const BackwardCall&, int blocks, const Stream&) = {};
  // dQ: where it is apart, by a kernel of its own; elsewhere from the sums that backward leaves.
  void (*backward_queries[2])(const QueriesCall&, int blocks, const Stream&) = {};
  void (*after_backward[2])(const AfterCall&, const Stream&) = {};
};

// Throws where this build leaves the head size out.
[[nodiscard]] const Kernels& kernels(DType dtype, int head_dim);

// counters <- 0
void zero_counters(int* counters, std::int64_t count, const Stream& stream);

// seen_by <- the queries that see each key place, where intervals are tables; `lists` of them, [lists, ...]
void write_seen_by(const Intervals& seen, const int* query_counts, int queries, int lists, int capacity,
                   int* first, int* last, const Stream& stream);

// to <- the call's block lists, one per query head
void copy_lists(const AttentionCall& call, const BlockLists& to, const Stream& stream);
// visits <- what those lists come to in tiles
void write_visits(const AttentionCall& call, const Visits& visits, const Stream& stream);

}  // namespace headroom::cuda::sm90
