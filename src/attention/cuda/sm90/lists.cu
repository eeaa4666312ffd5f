// What kernels read of the mask, written before a pass.
#include "attention/cuda/sm90/kernels.h"
#include "attention/cuda/sm90/visits-inl.h"
#include "cuda/ptx/global.h"

namespace headroom::cuda::sm90 {

// counters <- 0
static __global__ void zero_counters_kernel(int* counters, std::int64_t count) {
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernels_before();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) counters[at] = 0;
}

static __global__ void seen_by_kernel(Intervals seen, const int* query_counts, int queries, int lists,
                                      int capacity, int* first, int* last) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<std::int64_t>(lists) * capacity) return;
  const int list = static_cast<int>(at / capacity);
  const int key = static_cast<int>(at % capacity);
  const std::int64_t base = seen.head_stride > 0 ? list * seen.head_stride : list * seen.batch_stride;
  const Range range = rows_that_see(seen.first + base, seen.last + base,
                                    query_counts == nullptr ? queries : query_counts[list], {key, key + 1});
  first[at] = range.begin;
  last[at] = range.end;
}

void zero_counters(int* counters, std::int64_t count, const Stream& stream) {
  launch<Begin::early>("zero_counters_kernel", zero_counters_kernel, ceil_div(count, kRowThreads),
                       kRowThreads, 0, stream, counters, count);
}

void write_seen_by(const Intervals& seen, const int* query_counts, int queries, int lists, int capacity,
                   int* first, int* last, const Stream& stream) {
  launch("seen_by_kernel", seen_by_kernel, ceil_div(static_cast<std::int64_t>(lists) * capacity, kRowThreads),
         kRowThreads, 0, stream, seen, query_counts, queries, lists, capacity, first, last);
}

void copy_lists(const AttentionCall& call, const BlockLists& to, const Stream& stream) {
  launch_copy_lists(call, to, stream);
}

void write_visits(const AttentionCall& call, const Visits& visits, const Stream& stream) {
  launch_visits(call, visits, stream);
}

}  // namespace headroom::cuda::sm90
