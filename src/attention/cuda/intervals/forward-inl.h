// Forward on intervals: a tile of queries keeps its output and passes over the keys it sees.
#pragma once

#include "attention/cuda/intervals/tiles-inl.h"

namespace headroom::cuda {

// O <- softmax(Q K^T) V of one tile of queries
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kForwardBytes > (100 << 10) ? 1 : 2)
    interval_forward_kernel(AttentionCall call, QueryTiling tiling, std::int64_t tiles) {
  using Product = typename T::Product;
  static_assert(Product::kHalves == 1, "a row's softmax is one warp's");
  constexpr int kSlots = Product::kSlots;
  constexpr int kSums = Product::template kSums<T::kColumns>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Product::kRows;
  // The last tiles of a causal mask are the longest: they start first.
  const std::int64_t tile = tiles - 1 - static_cast<std::int64_t>(blockIdx.x) % tiles;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) / tiles;
  const ListHead head = ListHead::of(call, item / call.heads_q, item % call.heads_q);
  const Range rows = tiling.tile(tile, head.count_q);
  if (rows.empty()) return;
  const TileIntervals intervals = TileIntervals::of(head.first, head.last, rows);
  const BlockList list = call.block_list(head.b, head.head, tiling.block_of(tile));
  const std::int64_t kv = head.head / call.group();
  const TileSource keys = TileSource::of(call.key, head.b, kv, head.key_rows);
  const TileSource values = TileSource::of(call.value, head.b, kv, head.key_rows);
  const int chunks = (call.head_dim + T::kColumns - 1) / T::kColumns;

  float* query = shared_words();  // [chunks, or one of them][rows, columns]
  float* stream = query + (T::kResident ? T::kChunks : 1) * T::kQueryWords;  // [stages][keys, columns]
  float* scores_shared = stream + T::kStages * T::kKeyWords + warp_row * T::kScoreStride;
  const auto fill = [&](const TileSource& from, std::int32_t key_tile, int chunk, int stage) {
    fill_tile<kTileKeys, T::kColumns, T::kStride, T::kThreads>(stream + stage * T::kKeyWords, from,
                                                               key_tile * kTileKeys, head.count_k,
                                                               chunk * T::kColumns, call.head_dim);
  };
  const auto fill_query = [&](float* to, int chunk) {
    fill_tile<T::kRows, T::kColumns, T::kStride, T::kThreads>(
        to, TileSource::of(call.query, head.b, head.head, head.rows), rows.begin, rows.end,
        chunk * T::kColumns, call.head_dim);
  };
  if constexpr (T::kResident) {
    for (int c = 0; c < chunks; ++c) fill_query(query + c * T::kQueryWords, c);
  }

  // The softmax so far: nothing, the sink, or an earlier result.
  float row_max[kSlots];
  float row_sum[kSlots];  // over this lane's columns
  float sums[T::kChunks][kSums] = {};
  const std::int64_t statistics = call.statistics(head.b, head.head);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    row_max[s] = -kInfinity;
    const std::int32_t i = rows.begin + warp_row + Product::row(lane, s);
    row_sum[s] = 0;
    if (i < rows.end && call.resume) {
      row_max[s] = RowSoftmax::load(call, statistics + head.row(i)).base;
    } else if (i < rows.end && call.sinks != nullptr) {
      row_max[s] = call.sinks[head.head] * kLog2E;
      row_sum[s] = lane % Product::kPeers != 0 ? 0.0F : 1.0F;
    }
  }

  const ScoreRule rule = ScoreRule::of(call);
  KeyTiles key_tiles(intervals.some, kTileKeys, list);
  std::int32_t current = key_tiles.next();
  int stage = 0;
  // Steps of a tile of keys: Q with K, then V, each in chunks. Makes one ready to use, and starts the next.
  enum Step { kScore, kSum };
  std::int32_t following = -1;
  const auto advance = [&](int step, int chunk) {
    if constexpr (T::kStages == 2) {
      wait_for_copies();
      __syncthreads();
      stage ^= 1;
      const bool last = chunk + 1 == chunks;
      const bool to_keys = last == (step == kSum);
      const std::int32_t then = last && step == kSum ? following : current;
      if (then >= 0) fill(TileSource::choose(to_keys, keys, values), then, last ? 0 : chunk + 1, stage ^ 1);
    } else {
      __syncthreads();
      if (step == kScore) fill_query(query, chunk);
      fill(TileSource::choose(step == kScore, keys, values), current, chunk, 0);
      wait_for_copies();
      __syncthreads();
    }
    return stream + stage * T::kKeyWords;
  };
  if constexpr (T::kStages == 2) {
    if (current >= 0) fill(keys, current, 0, 1);
  }

  while (current >= 0) {
    following = key_tiles.next();
    // S <- Q K^T
    float scores[Product::kScores] = {};
    for (int c = 0; c < chunks; ++c) {
      const float* chunk = advance(kScore, c);
      Product::template add_scores<T::kColumns>(
          scores, query + (T::kResident ? c : 0) * T::kQueryWords + warp_row * T::kStride, chunk, lane);
    }
    // x <- capped S, and -inf where a query does not see a key
    const std::int32_t first_key = current * kTileKeys;
    const TileMask mask = TileMask::of(intervals, list, first_key, lane);
    if (rule.cap != 0) {
#pragma unroll
      for (int e = 0; e < Product::kScores; ++e) scores[e] = capped(rule.inner * scores[e]);
    }
    if (mask.partial) {
      Range seen[kSlots];
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        seen[s] = row_interval(head.first, head.last, rows, warp_row + Product::row(lane, s));
      }
#pragma unroll
      for (int e = 0; e < Product::kScores; ++e) {
        if (!mask.sees(seen[Product::score_slot(e)], first_key, Product::score_column(lane, e))) {
          scores[e] = -kInfinity;
        }
      }
    }
    // m' <- max(m, rows of x); P <- 2^(x - m'); l <- 2^(m - m') l + rows of P; O <- 2^(m - m') O
    float highest[kSlots];
    float shift[kSlots];
    float rescale[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) highest[s] = -kInfinity;
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      highest[Product::score_slot(e)] = fmaxf(highest[Product::score_slot(e)], scores[e]);
    }
    bool moved = false;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int step = 1; step < Product::kPeers; step *= 2) {
        highest[s] = fmaxf(highest[s], __shfl_xor_sync(0xffffffffu, highest[s], step));
      }
      const float higher = fmaxf(row_max[s], highest[s] * rule.factor);
      shift[s] = higher == -kInfinity ? 0.0F : higher;
      rescale[s] = power_of_two(row_max[s] - shift[s]);
      row_sum[s] *= rescale[s];
      moved |= higher != row_max[s];
      row_max[s] = higher;
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
      for (int c = 0; c < T::kChunks; ++c) {
#pragma unroll
        for (int e = 0; e < kSums; ++e) {
          sums[c][e] *= rescale[Product::template sum_slot<T::kColumns>(e)];
        }
      }
    }
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      const int s = Product::score_slot(e);
      const float p = power_of_two(fmaf(scores[e], rule.factor, -shift[s]));
      row_sum[s] += p;
      scores_shared[Product::row(lane, s) * T::kScoreStride + Product::score_column(lane, e)] = p;
    }
    __syncwarp();
    // O <- O + P V
#pragma unroll
    for (int c = 0; c < T::kChunks; ++c) {
      if (c >= chunks) break;
      const float* chunk = advance(kSum, c);
      Product::template add_sums<T::kColumns>(sums[c], scores_shared, T::kScoreStride, chunk, lane);
    }
    current = following;
  }

  // O <- (w O' + O) / (w l' + l); LSE <- m + log(w l' + l); a row that stays open is not divided. What a row
  // resumes from, O' and l', has the weight w and is added last: its rounding is then that of one sum and not
  // of one for each key.
  float weight[kSlots];
  float inverse[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int step = 1; step < Product::kPeers; step *= 2) {
      row_sum[s] += __shfl_xor_sync(0xffffffffu, row_sum[s], step);
    }
    RowSoftmax row{row_max[s], static_cast<double>(row_sum[s])};
    weight[s] = 0;
    const std::int32_t i = rows.begin + warp_row + Product::row(lane, s);
    if (i < rows.end && call.resume) {
      const RowSoftmax before = RowSoftmax::load(call, statistics + head.row(i));
      if (before.sum > 0) weight[s] = power_of_two(before.base - row_max[s]);
      row.sum += static_cast<double>(weight[s]) * before.sum;
    }
    inverse[s] = row.inverse(call);
    __syncwarp();  // every lane has read what one of them overwrites
    if (i < rows.end && lane % Product::kPeers == 0) row.store(call, statistics + head.row(i));
  }
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      const int slot = Product::template sum_slot<T::kColumns>(e);
      const std::int32_t i = rows.begin + warp_row + Product::row(lane, slot);
      const int column = c * T::kColumns + Product::template sum_column<T::kColumns>(lane, e);
      if (i < rows.end && column < call.head_dim) {
        const std::int64_t at = head.b * call.output.batch_stride + head.head * call.output.head_stride +
                                head.row(i) * call.output.row_stride + column;
        float sum = sums[c][e];
        if (weight[slot] > 0) {
          sum = fmaf(weight[slot], load_element(call.output.data, call.output.dtype, at), sum);
        }
        store_element(call.output.data, call.output.dtype, at, sum * inverse[slot]);
      }
    }
  }
}

template <class T>
void launch_forward(const AttentionCall& call, const Stream& stream) {
  const QueryTiling tiling = QueryTiling::of(call.blocks.rows, call.seq_q, T::kRows);
  const std::int64_t tiles = tiling.count(call.lists.capacity);
  launch("interval_forward_kernel", interval_forward_kernel<T>, call.batch * call.heads_q * tiles,
         T::kThreads, T::kForwardBytes, stream, call, tiling, tiles);
}

}  // namespace headroom::cuda
