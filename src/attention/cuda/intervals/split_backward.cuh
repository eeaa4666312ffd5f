// Attention backward in f32 on Hopper (split_tiles.cuh): a block keeps a tile of keys and values with the
// sums of their gradients and takes the tiles of queries that see them, rising, as backward-inl.h
// does. Of its four warpgroups one reads and splits; one makes P and sums dV, one makes dS and sums dK, one
// multiplies dQ and adds it in global memory. P goes from the second to the third through shared memory, dS
// from the third to the fourth in the same memory.
#pragma once

#include "attention/cuda/intervals/query_tiles-inl.h"
#include "attention/cuda/intervals/split_tiles.cuh"

namespace headroom::cuda {

// Named barriers, each of one warpgroup.
enum SplitBarrier : int { kProbabilitiesRead = 1, kTurnTaken = 2, kGradientsAdded = 3 };

// A tile of queries, and what its columns of scores need.
struct SplitQueryTile {
  static constexpr int kRows = 64;
  static_assert(kRows >= kLeastTileRows, "there are turns for so many tiles");

  std::int32_t index;  // -1: there are no more
  ListHead head;
  Range rows;
  std::uint64_t keys;     // by block list
  std::int32_t previous;  // tile of keys that adds to dQ before this one, or -1; where there are turns
  alignas(16) float shift[kRows];
  alignas(16) float dot[kRows];
  alignas(16) std::int32_t first[kRows];
  alignas(16) std::int32_t last[kRows];

  // Intervals rise with the row, so the first and the last one bound them all. A row past the end has no P.
  [[nodiscard]] __device__ TileMask mask(std::int32_t first_key) const {
    const bool covers = first[rows.end - rows.begin - 1] <= first_key && last[0] >= first_key + kTileKeys;
    return {!covers || keys != ~std::uint64_t{0}, keys};
  }
};

// In shared memory.
template <int D>
struct SplitBackward {
  static constexpr int kStages = D <= 64 ? 2 : 1;
  static constexpr int kExchanges = D <= 64 ? 2 : 1;
  static constexpr int kTiles = 4;
  static constexpr int kThreads = 4 * kWarpgroup;
  static constexpr int kReaderRegisters = 104;
  static constexpr int kSumRegisters = D <= 64 ? 152 : 168;
  static constexpr int kQueryRegisters = D <= 64 ? 104 : 72;
  static_assert(kReaderRegisters + 2 * kSumRegisters + kQueryRegisters <= 4 * 128);

  SplitTile<64, D> key;
  SplitTile<64, D> value;
  SplitTile<64, D> query[kStages];
  SplitTile<64, D> output_gradient[kStages];
  union alignas(1024) Exchange {
    float4 probability[8][kWarpgroup];                   // as the registers of a warpgroup hold it
    std::uint16_t score_gradient[kSplitParts][64 * 64];  // a row per key
  } exchange[kExchanges];
  Ring<1> key_ring;
  Ring<kStages> query_ring;
  Ring<kStages> gradient_ring;
  Ring<kExchanges> probability_ring;     // empty: dS has been used, too
  Ring<kExchanges> score_gradient_ring;  // full only
  Ring<kTiles> tile_ring;
  SplitQueryTile tile[kTiles];
  KeyShare share;  // read from here: registers are short
};

// By the warpgroup that reads and splits. What is read goes on when this comes back.
__device__ __forceinline__ void start_tile(const AttentionCall& call, const QueryTiling& tiling,
                                           const KeyShare& share, SplitQueryTile& queries,
                                           QueryTiles::Item item, int thread) {
  if (thread == 0) queries.index = item.tile;
  if (item.tile < 0) return;
  const ListHead head = ListHead::of(call, share.b, item.head);
  const Range rows = tiling.tile(item.tile, head.count_q);
  if (thread == 0) {
    queries.head = head;
    queries.rows = rows;
    queries.keys = ~std::uint64_t{0};
  }
  if (thread < SplitQueryTile::kRows) {
    const std::int32_t i = rows.begin + thread;
    if (i < rows.end) {
      const std::int64_t at = call.statistics(head.b, head.head) + head.row(i);
      copy_word(queries.shift + thread, call.row_shift + at);
      copy_word(queries.dot + thread, call.row_dot + at);
      copy_word(queries.first + thread, head.first + i);
      copy_word(queries.last + thread, head.last + i);
    } else {
      queries.shift[thread] = kInfinity;
      queries.dot[thread] = 0;
      queries.first[thread] = queries.last[thread] = 0;
    }
  }
  if (call.blocks.blocks != nullptr && thread < kWarp) {
    const BlockList list = call.block_list(share.b, item.head, tiling.block_of(item.tile));
    const std::uint64_t keys = listed_keys(list, share.key_tile * kTileKeys, thread);
    if (thread == 0) queries.keys = keys;
  }
  if (call.turns != nullptr && thread == 3 * kWarp) {
    queries.previous =
        QueryTile::of(call, tiling, share.b, item).previous(call, tiling, item.tile, share.key_tile);
  }
}

template <int D>
__device__ void split_inputs(const AttentionCall& call, const QueryTiling& tiling, SplitBackward<D>& shared,
                             int thread) {
  const KeyShare& share = shared.share;
  const int columns = call.head_dim - thread % 8 * 8;
  {
    // Every head of the group that the call sums over has the same list, or there is one such head.
    const ListHead head = ListHead::of(call, share.b, share.kv * call.group() + call.group_begin);
    const Range keys{share.key_tile * kTileKeys, head.count_k};
    fill_split(shared.key, 0, ThreadSource::of(call.key, share.b, share.kv, head.key_rows, keys, thread),
               columns, thread);
    fill_split(shared.value, 0, ThreadSource::of(call.value, share.b, share.kv, head.key_rows, keys, thread),
               columns, thread);
    shared.key_ring.publish({});
  }

  // Panels of dO and then of Q, tile after tile.
  constexpr int kPanels = SplitTile<64, D>::kPanels;
  QueryTiles query_tiles(call, tiling, share);
  PanelShare panel_share;
  ThreadSource source;
  const auto start = [&](const TypedHeadsView& view, QueryTiles::Item item) {
    const ListHead head = ListHead::of(call, share.b, item.head);
    source =
        ThreadSource::of(view, share.b, item.head, head.rows, tiling.tile(item.tile, head.count_q), thread);
    panel_share.fetch(source, 0, columns);
  };
  const auto store = [&](SplitTile<64, D>& tile) {
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      panel_share.store(tile, 0, panel, thread, [&](int n) {
        if (panel + 1 < kPanels) panel_share.piece[n].fetch(source, n, panel + 1, columns);
      });
    }
    ptx::async_proxy_fence();
  };
  RingPosition<SplitBackward<D>::kStages> at;
  RingPosition<SplitBackward<D>::kTiles> tile_at;
  QueryTiles::Item item = query_tiles.next();
  start_tile(call, tiling, share, shared.tile[0], item, thread);
  while (true) {
    if (item.tile >= 0) start(call.output_gradient, item);
    wait_for_copies();
    shared.tile_ring.publish(tile_at);
    tile_at.advance();
    if (item.tile < 0) return;
    shared.gradient_ring.wait_empty(at);
    store(shared.output_gradient[at.stage()]);
    shared.gradient_ring.publish(at);
    const QueryTiles::Item following = query_tiles.next();
    shared.tile_ring.wait_empty(tile_at);
    start_tile(call, tiling, share, shared.tile[tile_at.stage()], following, thread);
    start(call.query, item);
    item = following;
    shared.query_ring.wait_empty(at);
    store(shared.query[at.stage()]);
    shared.query_ring.publish(at);
    at.advance();
  }
}

// sums <- sums + A B over 64 rows of B
template <int D>
__device__ __forceinline__ void add_rows(float (&sums)[D / kPanel][32], const SplitRegisters& a,
                                         const SplitTile<64, D>& b) {
#pragma unroll
  for (int panel = 0; panel < D / kPanel; ++panel) {
    float part[32];
    ptx::wgmma_fence();
    multiply_rows<64>(part, a, b, panel);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(part);
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[panel][i] += part[i];
  }
}

// A warpgroup's 64 keys of a gradient.
template <int D>
__device__ __forceinline__ void store_key_rows(const AttentionCall& call, const TypedHeadsView& view,
                                               const KeyShare& share, const float (&sums)[D / kPanel][32],
                                               float scale, int thread) {
  const ListHead head = ListHead::of(call, share.b, share.kv * call.group() + call.group_begin);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int32_t i = share.key_tile * kTileKeys + thread / kWarp * 16 + thread % kWarp / 4 + 8 * r;
    if (i >= head.count_k) continue;
    const std::int64_t at =
        share.b * view.batch_stride + share.kv * view.head_stride + head.key_row(i) * view.row_stride;
#pragma unroll
    for (int j = 0; j < D / 4; ++j) {
      const int column = j / 2 * 8 + thread % 4 * 2 + j % 2;
      if (column >= call.head_dim) continue;
      store_or_add(view, at + column, sums[j / 16][j % 16 / 2 * 4 + 2 * r + j % 2] * scale,
                   call.add_key_gradients);
    }
  }
}

// P, and dV = P^T dO.
template <int D>
__device__ void sum_value_gradient(const AttentionCall& call, SplitBackward<D>& shared, int thread) {
  const int key = thread / kWarp * 16 + thread % kWarp / 4;  // of two, eight apart
  const int column = thread % 4 * 2;
  const KeyShare& share = shared.share;
  const std::int32_t first_key = share.key_tile * kTileKeys;
  const ScoreRule rule = ScoreRule::of(call);
  float sums[D / kPanel][32] = {};
  RingPosition<SplitBackward<D>::kStages> at;
  RingPosition<SplitBackward<D>::kTiles> tile_at;
  RingPosition<SplitBackward<D>::kExchanges> exchange_at;
  shared.key_ring.wait_full({});
  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const SplitQueryTile& queries = shared.tile[tile_at.stage()];
    if (queries.index < 0) break;
    float scores[32];
    shared.query_ring.wait_full(at);
    multiply_scores(scores, shared.key, 0, shared.query[at.stage()]);
    shared.query_ring.release(at);
    if (rule.cap != 0) {
#pragma unroll
      for (float& score : scores) score = capped(rule.inner * score);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 shift = *reinterpret_cast<const float2*>(queries.shift + j * 8 + column);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& score = scores[4 * j + r];
        score = power_of_two(fmaf(score, rule.factor, -(r % 2 == 0 ? shift.x : shift.y)));
      }
    }
    const TileMask mask = queries.mask(first_key);
    if (mask.partial) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int row = key + i % 4 / 2 * 8;
        const int query = i / 4 * 8 + column + i % 2;
        if (!mask.sees({queries.first[query], queries.last[query]}, first_key, row)) scores[i] = 0;
      }
    }
    shared.tile_ring.release(tile_at);
    tile_at.advance();
    shared.probability_ring.wait_empty(exchange_at);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      shared.exchange[exchange_at.stage()].probability[j][thread] =
          make_float4(scores[4 * j], scores[4 * j + 1], scores[4 * j + 2], scores[4 * j + 3]);
    }
    shared.probability_ring.publish(exchange_at);
    exchange_at.advance();
    const SplitRegisters probabilities(scores);
    shared.gradient_ring.wait_full(at);
    add_rows<D>(sums, probabilities, shared.output_gradient[at.stage()]);
    shared.gradient_ring.release(at);
    at.advance();
  }
  store_key_rows<D>(call, call.value_gradient, share, sums, 1, thread);
}

// dS = P (dP - dO . O), and dK = dS^T Q.
template <int D>
__device__ void sum_key_gradient(const AttentionCall& call, SplitBackward<D>& shared, int thread) {
  const int lane = thread % kWarp;
  const int column = thread % 4 * 2;
  // Where this lane's row of an 8 x 8 tile goes: rows are 128 bytes, their 16-byte pieces swapped by the
  // row's last bits.
  const int matrix_row = thread / kWarp * 16 + lane % 16;
  const ScoreRule rule = ScoreRule::of(call);
  float sums[D / kPanel][32] = {};
  RingPosition<SplitBackward<D>::kStages> at;
  RingPosition<SplitBackward<D>::kTiles> tile_at;
  RingPosition<SplitBackward<D>::kExchanges> exchange_at;
  shared.key_ring.wait_full({});
  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const SplitQueryTile& queries = shared.tile[tile_at.stage()];
    if (queries.index < 0) break;
    float gradients[32];
    shared.gradient_ring.wait_full(at);
    multiply_scores(gradients, shared.value, 0, shared.output_gradient[at.stage()]);
    shared.gradient_ring.release(at);
    shared.probability_ring.wait_full(exchange_at);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 dot = *reinterpret_cast<const float2*>(queries.dot + j * 8 + column);
      const float4 four = shared.exchange[exchange_at.stage()].probability[j][thread];
      const float p[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& gradient = gradients[4 * j + r];
        gradient = p[r] * (gradient - (r % 2 == 0 ? dot.x : dot.y));
        if (rule.cap != 0) gradient *= cap_slope(p[r], queries.shift[j * 8 + column + r % 2], rule.factor);
      }
    }
    shared.tile_ring.release(tile_at);
    tile_at.advance();
    const SplitRegisters score_gradients(gradients);
    ptx::named_barrier_sync(kProbabilitiesRead, kWarpgroup);
#pragma unroll
    for (int part = 0; part < kSplitParts; ++part) {
      const std::uint32_t row_address =
          ptx::shared_address(shared.exchange[exchange_at.stage()].score_gradient[part]) + matrix_row * 128;
#pragma unroll
      for (int k = 0; k < 64; k += 16) {
        const std::uint32_t* pairs = score_gradients.pairs[part] + k / 4;
        ptx::store_matrix(row_address + (((k / 8 + lane / 16) ^ (matrix_row & 7)) << 4), pairs[0], pairs[1],
                          pairs[2], pairs[3]);
      }
    }
    ptx::async_proxy_fence();
    shared.score_gradient_ring.publish(exchange_at);
    exchange_at.advance();
    shared.query_ring.wait_full(at);
    add_rows<D>(sums, score_gradients, shared.query[at.stage()]);
    shared.query_ring.release(at);
    at.advance();
  }
  store_key_rows<D>(call, call.key_gradient, shared.share, sums, call.scale, thread);
}

// dQ <- dQ + scale sums, of 64 queries and 64 columns from `first_column` on
__device__ __forceinline__ void add_query_rows(const AttentionCall& call, const SplitQueryTile& queries,
                                               int first_column, const float (&sums)[32], int thread) {
  const TypedHeadsView& view = call.query_gradient;
  const int column = first_column + thread % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int32_t i = queries.rows.begin + thread / kWarp * 16 + thread % kWarp / 4 + 8 * r;
    if (i >= queries.rows.end) continue;
    float* to = static_cast<float*>(view.data) + queries.head.b * view.batch_stride +
                queries.head.head * view.head_stride + queries.head.row(i) * view.row_stride + column;
    const auto add = [&](bool aligned) {  // known outside the loop
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (column + j * 8 < call.head_dim)
          add_vector<2>(to + j * 8, sums + 4 * j + 2 * r, call.scale, aligned);
      }
    };
    if (view.aligned) {
      add(true);
    } else {
      add(false);
    }
  }
}

// dQ = dS K, added in global memory.
template <int D>
__device__ void add_query_gradients(const AttentionCall& call, SplitBackward<D>& shared, int thread) {
  const std::int32_t key_tile = shared.share.key_tile;
  RingPosition<SplitBackward<D>::kTiles> tile_at;
  RingPosition<SplitBackward<D>::kExchanges> exchange_at;
  shared.key_ring.wait_full({});
  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const SplitQueryTile& queries = shared.tile[tile_at.stage()];
    if (queries.index < 0) break;
    std::int32_t* turn = call.turn(queries.head.b, queries.head.head, queries.index);
    shared.score_gradient_ring.wait_full(exchange_at);
#pragma unroll 1
    for (int panel = 0; panel < D / kPanel; ++panel) {
      float sums[32];
      ptx::wgmma_fence();
      multiply_transposed(sums, shared.exchange[exchange_at.stage()].score_gradient, shared.key, panel);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>(sums);
      if (panel == D / kPanel - 1) shared.probability_ring.release(exchange_at);
      if (panel == 0 && turn != nullptr) {
        if (thread == 0) wait_for_turn_after(queries.previous, turn);
        ptx::named_barrier_sync(kTurnTaken, kWarpgroup);
      }
      add_query_rows(call, queries, panel * kPanel, sums, thread);
    }
    exchange_at.advance();
    shared.tile_ring.release(tile_at);
    tile_at.advance();
    if (turn != nullptr) {
      ptx::named_barrier_sync(kGradientsAdded, kWarpgroup);
      if (thread == 0) {
        fence_device();
        give_turn(turn, key_tile);
      }
    }
  }
}

template <int D>
__global__ void __launch_bounds__(SplitBackward<D>::kThreads, 1)
    split_backward_kernel(const __grid_constant__ AttentionCall call,
                          const __grid_constant__ QueryTiling tiling) {
  using Shared = SplitBackward<D>;
  auto& shared = headroom::shared_memory<Shared>();
  if (threadIdx.x == 0) {
    shared.share = KeyShare::of(call, take_number(call.next_share), 1);
    shared.key_ring.init(kWarpgroup, 1);
    init_rings(kWarpgroup, 2 * kWarpgroup, shared.query_ring, shared.gradient_ring);
    shared.probability_ring.init(kWarpgroup, kWarpgroup);
    shared.score_gradient_ring.init(kWarpgroup, 1);
    shared.tile_ring.init(kWarpgroup, 3 * kWarpgroup);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int group = warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (group == 0) {
    ptx::give_registers<Shared::kReaderRegisters>();
    split_inputs(call, tiling, shared, thread);
  } else if (group == 1) {
    ptx::take_registers<Shared::kSumRegisters>();
    sum_value_gradient(call, shared, thread);
  } else if (group == 2) {
    ptx::take_registers<Shared::kSumRegisters>();
    sum_key_gradient(call, shared, thread);
  } else {
    ptx::give_registers<Shared::kQueryRegisters>();
    add_query_gradients(call, shared, thread);
  }
}

template <int D>
void launch_split_backward(const AttentionCall& call, const Stream& stream) {
  static_assert(sizeof(SplitBackward<D>) <= kHopperSharedBytes);
  const QueryTiling tiling = QueryTiling::of(call.blocks.rows, call.seq_q, SplitQueryTile::kRows);
  launch("split_backward_kernel", split_backward_kernel<D>, call.batch * call.heads_kv * call.lists.key_tiles,
         SplitBackward<D>::kThreads, sizeof(SplitBackward<D>), stream, call, tiling);
}

}  // namespace headroom::cuda
