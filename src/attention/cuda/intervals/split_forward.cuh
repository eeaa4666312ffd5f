// Attention forward in f32 on Hopper (split_tiles.cuh): a block keeps 128 queries and their output and passes
// over the tiles of keys they see. One warpgroup reads and splits, two of 64 rows each multiply and
// exponentiate: while one of them exponentiates, the other may multiply.
#pragma once

#include "attention/cuda/intervals/split_tiles.cuh"
#include "attention/cuda/softmax.cuh"

namespace headroom::cuda {

// A block's queries.
struct QueryBlock {
  ListHead head;
  Range rows;
  TileIntervals intervals;
  BlockList list;
  std::int64_t kv;
};

// A tile of keys as the block meets it.
struct KeyTile {
  std::int32_t first_key;  // -1: there are no more
  TileMask mask;
};

// In shared memory.
template <int D>
struct SplitForward {
  static constexpr int kRows = 128;
  static constexpr int kStages = D <= 64 ? 3 : 1;  // tiles of 192 KiB either way
  using Block = Roles<2, 200>;

  SplitTile<kRows, D> query;
  SplitTile<64, D> key[kStages];
  SplitTile<64, D> value[kStages];
  Ring<1> query_ring;
  Ring<kStages> key_ring;
  Ring<kStages> value_ring;
  KeyTile key_tile[kStages];  // with key_ring
  QueryBlock block;           // read from here: registers are short
};

template <int D>
__device__ void split_inputs(const AttentionCall& call, SplitForward<D>& shared, int thread) {
  const QueryBlock& block = shared.block;
  const ListHead& head = block.head;
  const int columns = call.head_dim - thread % 8 * 8;
#pragma unroll 1
  for (int row = 0; row < SplitForward<D>::kRows; row += 64) {
    fill_split(shared.query, row,
               ThreadSource::of(call.query, head.b, head.head, head.rows,
                                {block.rows.begin + row, block.rows.end}, thread),
               columns, thread);
  }
  shared.query_ring.publish({});

  // Panels of K and then of V, tile after tile: while one is split, the next is on the way.
  constexpr int kPanels = SplitTile<64, D>::kPanels;
  PanelShare share;
  ThreadSource source;
  const auto open = [&](const TypedHeadsView& view, std::int32_t tile) {
    source =
        ThreadSource::of(view, head.b, block.kv, head.key_rows, {tile * kTileKeys, head.count_k}, thread);
  };
  RingPosition<SplitForward<D>::kStages> at;
  KeyTiles key_tiles(block.intervals.some, kTileKeys, block.list);
  std::int32_t tile = key_tiles.next();
  if (tile >= 0) {
    open(call.key, tile);
    share.fetch(source, 0, columns);
  }
  while (true) {
    shared.key_ring.wait_empty(at);
    if (tile < 0) break;
    if (thread < kWarp) {
      const TileMask mask = TileMask::of(block.intervals, block.list, tile * kTileKeys, thread);
      if (thread == 0) shared.key_tile[at.stage()] = {tile * kTileKeys, mask};
    }
    const std::int32_t following = key_tiles.next();
    const auto split = [&](SplitTile<64, D>& to, auto& ring, const TypedHeadsView& next,
                           std::int32_t next_tile) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const bool last = panel == kPanels - 1;
        if (last && next_tile >= 0) open(next, next_tile);
        share.store(to, 0, panel, thread, [&](int n) {
          if (!last || next_tile >= 0) share.piece[n].fetch(source, n, (panel + 1) % kPanels, columns);
        });
      }
      ptx::async_proxy_fence();
      ring.publish(at);
    };
    split(shared.key[at.stage()], shared.key_ring, call.value, tile);
    shared.value_ring.wait_empty(at);
    split(shared.value[at.stage()], shared.value_ring, call.key, following);
    at.advance();
    tile = following;
  }
  if (thread == 0) shared.key_tile[at.stage()].first_key = -1;
  shared.key_ring.publish(at);
}

template <int D>
__device__ void consume(const AttentionCall& call, SplitForward<D>& shared, int consumer, int thread) {
  const QueryBlock& block = shared.block;
  const int lane = thread % kWarp;
  const int first_row = consumer * 64 + thread / kWarp * 16 + lane / 4;  // of two, eight apart
  const ListHead& head = block.head;
  // Where the softmax of a row lies. Read when it is needed: the loop has no register left for it.
  const auto statistics_at = [&](std::int32_t i) { return call.statistics(head.b, head.head) + head.row(i); };

  // The softmax so far: nothing, the sink, or an earlier result.
  Softmax softmax;
  float output[D / 2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int32_t i = block.rows.begin + first_row + 8 * r;
    if (i < block.rows.end && call.resume) {
      softmax.maximum[r] = RowSoftmax::load(call, statistics_at(i)).base;
    } else if (i < block.rows.end && call.sinks != nullptr) {
      softmax.maximum[r] = call.sinks[head.head] * kLog2E;
      softmax.sum[r] = lane % 4 != 0 ? 0.0F : 1.0F;
    }
  }

  const ScoreRule rule = ScoreRule::of(call);
  RingPosition<SplitForward<D>::kStages> at;
  shared.query_ring.wait_full({});
  while (true) {
    float scores[32];
    shared.key_ring.wait_full(at);
    const std::int32_t first_key = shared.key_tile[at.stage()].first_key;
    const TileMask mask = shared.key_tile[at.stage()].mask;
    if (first_key < 0) break;
    multiply_scores(scores, shared.query, consumer * 64, shared.key[at.stage()]);
    shared.key_ring.release(at);
    if (rule.cap != 0) {
#pragma unroll
      for (float& score : scores) score = capped(rule.inner * score);
    }
    if (mask.partial) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Range seen = row_interval(head.first, head.last, block.rows, first_row + 8 * r);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if (i % 4 / 2 == r && !mask.sees(seen, first_key, i / 4 * 8 + lane % 4 * 2 + i % 2)) {
            scores[i] = -kInfinity;
          }
        }
      }
    }
    float factor[2];
    if (softmax.raise(scores, rule.factor, factor)) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) output[i] *= factor[i % 4 / 2];
    }
    softmax.exponentiate<0, 32>(scores, rule.factor);
    // O <- O + P V
    const SplitRegisters probabilities(scores);
    float sums[D / 2];
    shared.value_ring.wait_full(at);
    ptx::wgmma_fence();
    multiply_rows<D>(sums, probabilities, shared.value[at.stage()], 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    shared.value_ring.release(at);
    at.advance();
#pragma unroll
    for (int i = 0; i < D / 2; ++i) output[i] += sums[i];
  }

  float* output_data = static_cast<float*>(call.output.data) + head.b * call.output.batch_stride +
                       head.head * call.output.head_stride;
  // Where a thread's pair of columns of row r of two lies, or null.
  const auto output_at = [&](int r, int column) -> float* {
    const std::int32_t i = block.rows.begin + first_row + 8 * r;
    if (i >= block.rows.end || column >= call.head_dim) return nullptr;
    return output_data + head.row(i) * call.output.row_stride + column;
  };

  // O <- (w O' + O) / (w l' + l); LSE <- m + log(w l' + l); a row that stays open is not divided. What a row
  // resumes from, O' and l', has the weight w.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    RowSoftmax row{softmax.maximum[r], static_cast<double>(sum)};
    float weight = 0;
    const std::int32_t i = block.rows.begin + first_row + 8 * r;
    if (i < block.rows.end && call.resume) {
      const RowSoftmax before = RowSoftmax::load(call, statistics_at(i));
      if (before.sum > 0) weight = power_of_two(before.base - row.base);
      row.sum += static_cast<double>(weight) * before.sum;
    }
    const float inverse = row.inverse(call);
    __syncwarp();  // every lane has read what one of them overwrites
    if (i < block.rows.end && lane % 4 == 0) row.store(call, statistics_at(i));
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      float* to = output_at(r, j * 8 + lane % 4 * 2);
      if (to == nullptr) continue;
      float2 pair = make_float2(output[4 * j + 2 * r], output[4 * j + 2 * r + 1]);
      if (weight > 0) pair = make_float2(fmaf(weight, to[0], pair.x), fmaf(weight, to[1], pair.y));
      pair = make_float2(pair.x * inverse, pair.y * inverse);
      if (call.output.aligned) {
        *reinterpret_cast<float2*>(to) = pair;
      } else {
        to[0] = pair.x;
        to[1] = pair.y;
      }
    }
  }
}

template <int D>
__global__ void __launch_bounds__(SplitForward<D>::Block::kThreads, 1)
    split_forward_kernel(const __grid_constant__ AttentionCall call,
                         const __grid_constant__ QueryTiling tiling, std::int64_t tiles) {
#if defined(__CUDACC__)
  extern __shared__ float4 raw[];  // through shared_memory() the loops come out in another order
#else
  float4* raw = shared_memory;
#endif
  auto& shared = *reinterpret_cast<SplitForward<D>*>(raw);
  // The last tiles of a causal mask are the longest: they start first.
  const std::int64_t tile = tiles - 1 - static_cast<std::int64_t>(blockIdx.x) % tiles;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) / tiles;
  if (threadIdx.x == 0) {
    QueryBlock& block = shared.block;
    block.head = ListHead::of(call, item / call.heads_q, item % call.heads_q);
    block.rows = tiling.tile(tile, block.head.count_q);
    block.intervals = TileIntervals::of(block.head.first, block.head.last, block.rows);
    block.list = call.block_list(block.head.b, block.head.head, tiling.block_of(tile));
    block.kv = block.head.head / call.group();
    shared.query_ring.init(kWarpgroup, 1);
    init_rings(kWarpgroup, 2 * kWarpgroup, shared.key_ring, shared.value_ring);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (shared.block.rows.empty()) return;
  const int group = warpgroup_index();
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (group == 0) {
    ptx::give_registers<SplitForward<D>::Block::kProducerRegisters>();
    split_inputs(call, shared, thread);
  } else {
    ptx::take_registers<SplitForward<D>::Block::kConsumerRegisters>();
    consume(call, shared, group - 1, thread);
  }
}

template <int D>
void launch_split_forward(const AttentionCall& call, const Stream& stream) {
  static_assert(sizeof(SplitForward<D>) <= kHopperSharedBytes);
  const QueryTiling tiling = QueryTiling::of(call.blocks.rows, call.seq_q, SplitForward<D>::kRows);
  const std::int64_t tiles = tiling.count(call.lists.capacity);
  launch("split_forward_kernel", split_forward_kernel<D>, call.batch * call.heads_q * tiles,
         SplitForward<D>::Block::kThreads, sizeof(SplitForward<D>), stream, call, tiling, tiles);
}

}  // namespace headroom::cuda
