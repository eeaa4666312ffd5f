// Block lists into visits of tiles: launches before a pass that works on them. Included by a .cu file (or,
// for tests, by a .cpp after tests/cuda/on_host.h).
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/sm90/block_lists.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda::sm90 {

__device__ __forceinline__ std::int64_t warp_index() {
  return (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
}

__device__ __forceinline__ int highest_bit(std::uint32_t bits) {
  return 31 - __clz(static_cast<int>(bits));
}

// to <- the call's lists, one per query head; one thread per entry
static __global__ void copy_lists_kernel(AttentionCall call, BlockLists to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= call.batch * call.heads_q * to.lists_per_head * to.stride) return;
  const std::int64_t list = i / to.stride;
  const std::int64_t head = list / to.lists_per_head;
  to.blocks[i] = call.block_list(head / call.heads_q, head % call.heads_q, list % to.lists_per_head)
                     .blocks[i % to.stride];
}

// counts, entries <- the key tiles that a query tile visits; one warp per query tile, a lane per key tile.
// An entry of a list brings in no more tiles than it touches, so that the capacity holds whatever lists say.
static __global__ void visits_kernel(AttentionCall call, Visits visits) {
  const std::int64_t tile = warp_index();
  if (tile >= call.batch * call.heads_q * visits.query_tiles) return;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % kWarp);
  const std::int64_t head = tile / visits.query_tiles;
  const auto first_row = static_cast<std::int32_t>(tile % visits.query_tiles) * visits.tile_rows;
  const Range rows{first_row, least(first_row + visits.tile_rows, call.seq_q)};
  const MaskView mask = call.rule.of(head / call.heads_q, head % call.heads_q, 0);
  // Intervals rise with the row, so the first and the last row bound them all.
  const Range seen{plain_interval(mask, rows.begin).begin, plain_interval(mask, rows.end - 1).end};
  std::int32_t* to = visits.entries + tile * visits.capacity;
  std::int32_t count = 0;
  for (std::int32_t first = seen.begin / visits.tile_keys; first * visits.tile_keys < seen.end;
       first += kWarp) {
    const std::int32_t key_tile = first + lane;
    const std::int32_t key = key_tile * visits.tile_keys;
    Listed listed = Listed::none;
    if (key < seen.end) {
      listed = visits.lists.of_tile(head, rows, {key, least(key + visits.tile_keys, call.seq_k)});
    }
    const std::uint32_t found = __ballot_sync(0xFFFFFFFF, listed != Listed::none);
    if (listed != Listed::none) {
      const std::uint32_t before = found & ((1U << lane) - 1);
      to[count + __popc(before)] = 2 * key_tile + (listed == Listed::all ? 1 : 0);
    }
    count += __popc(found);
  }
  if (lane == 0) visits.counts[tile] = count;
}

// last, before <- the visits to a key tile; one warp per key tile, a lane per query tile
static __global__ void visits_to_key_tiles_kernel(std::int64_t heads, Visits visits) {
  const std::int64_t tile = warp_index();
  if (tile >= heads * visits.key_tiles) return;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % kWarp);
  const std::int64_t head = tile / visits.key_tiles;
  const auto key_tile = static_cast<std::int32_t>(tile % visits.key_tiles);
  std::int32_t last = -1;
  for (std::int32_t first = 0; first < visits.query_tiles; first += kWarp) {
    const std::int32_t query_tile = first + lane;
    const std::int32_t visit = query_tile < visits.query_tiles ? visits.find(head, query_tile, key_tile) : -1;
    const std::uint32_t found = __ballot_sync(0xFFFFFFFF, visit >= 0);
    if (found == 0) continue;
    const std::uint32_t below = found & ((1U << lane) - 1);
    const std::int32_t neighbour = __shfl_sync(0xFFFFFFFF, visit, below == 0 ? 0 : highest_bit(below));
    if (visit >= 0) visits.before[visits.offset(head, visit)] = below == 0 ? last : neighbour;
    last = __shfl_sync(0xFFFFFFFF, visit, highest_bit(found));
  }
  if (lane == 0) visits.last[tile] = last;
}

inline void launch_copy_lists(const AttentionCall& call, const BlockLists& to, const Stream& stream) {
  launch("copy_lists_kernel", copy_lists_kernel,
         ceil_div(call.batch * call.heads_q * to.lists_per_head * to.stride, kRowThreads), kRowThreads, 0,
         stream, call, to);
}

inline void launch_visits(const AttentionCall& call, const Visits& visits, const Stream& stream) {
  const std::int64_t heads = call.batch * call.heads_q;
  const auto blocks = [](std::int64_t warps) { return ceil_div(warps * kWarp, kRowThreads); };
  launch("visits_kernel", visits_kernel, blocks(heads * visits.query_tiles), kRowThreads, 0, stream, call,
         visits);
  if (visits.last == nullptr) return;
  launch("visitors_of_tiles_kernel", visits_to_key_tiles_kernel, blocks(heads * visits.key_tiles),
         kRowThreads, 0, stream, heads, visits);
}

}  // namespace headroom::cuda::sm90
