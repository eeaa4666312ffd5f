// Backward on intervals: a block keeps a tile of keys and values with the sums of their gradients and takes
// the tiles of queries that see them, rising. Three steps for each, over chunks of head_dim: Q and K for P;
// dO and V for dP and dV; Q and K again for dK and dQ. dQ is summed in global memory, in the order of keys
// where it has to be deterministic. Blocks take numbers as they start and wait for lower ones only, so there
// is always one that can go on.
#pragma once

#include "attention/cuda/intervals/query_tiles-inl.h"

namespace headroom::cuda {

// scores <- P <- 2^(x - shift), x from S; zeros where a query does not see a key
template <class T>
__device__ __forceinline__ void make_probabilities(float (&scores)[T::Product::kScores],
                                                   const float (&shift)[T::Product::kSlots],
                                                   const ScoreRule& rule, const QueryTile& queries,
                                                   const TileMask& mask, std::int32_t first_key, int half_key,
                                                   int warp_row, int lane) {
  using Product = typename T::Product;
  if (rule.cap != 0) {
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) scores[e] = capped(rule.inner * scores[e]);
  }
#pragma unroll
  for (int e = 0; e < Product::kScores; ++e) {
    scores[e] = power_of_two(fmaf(scores[e], rule.factor, -shift[Product::score_slot(e)]));
  }
  if (!mask.partial) return;
#pragma unroll
  for (int s = 0; s < Product::kSlots; ++s) {
    const Range seen =
        row_interval(queries.head.first, queries.head.last, queries.rows, warp_row + Product::row(lane, s));
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      if (Product::score_slot(e) != s) continue;
      if (!mask.sees(seen, first_key, half_key + Product::score_column(lane, e))) scores[e] = 0;
    }
  }
}

// Where a lane's score lies in shared memory, from its warp's first row.
template <class T>
__device__ __forceinline__ int score_offset(int lane, int e) {
  using Product = typename T::Product;
  return Product::row(lane, Product::score_slot(e)) * T::kScoreStride + Product::score_column(lane, e);
}

// dQ <- dQ + scale sums, of the warp's rows and columns from `column` on
template <class T>
__device__ __forceinline__ void add_query_gradient(
    const AttentionCall& call, const QueryTile& queries, int warp_row, int column,
    const float (&sums)[T::Product::template kSums<T::kColumns>], int lane) {
  using Product = typename T::Product;
  constexpr int kWidth = Product::template kSumWidth<T::kColumns>;
  const TypedHeadsView& view = call.query_gradient;
  float* head = static_cast<float*>(view.data) + queries.head.b * view.batch_stride +
                queries.head.head * view.head_stride + column;
#pragma unroll
  for (int e = 0; e < Product::template kSums<T::kColumns>; e += kWidth) {
    const std::int32_t i =
        queries.rows.begin + warp_row + Product::row(lane, Product::template sum_slot<T::kColumns>(e));
    const int at = Product::template sum_column<T::kColumns>(lane, e);
    if (i >= queries.rows.end || column + at >= call.head_dim) continue;
    add_vector<kWidth>(head + queries.head.row(i) * view.row_stride + at, sums + e, call.scale, view.aligned);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBackwardBlocks)
    interval_backward_kernel(AttentionCall call, QueryTiling tiling) {
  using Product = typename T::Product;
  constexpr int kSlots = Product::kSlots;
  constexpr int kSums = Product::template kKeySums<T::kColumns>;
  constexpr int kOwnColumns = T::kHeadDim < kGradientColumns ? T::kHeadDim : kGradientColumns;
  constexpr int kOwnChunks = kOwnColumns / T::kColumns;
  constexpr int kSlices = ceil_div(T::kHeadDim, kGradientColumns);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int half = Product::kHalves == 1 ? 0 : warp / kRowGroups;
  const int group = warp - half * kRowGroups;
  const int warp_row = group * Product::kRows;
  const int warp_key = group * (kTileKeys / kRowGroups);
  // Where two warps share their rows, this one's first key of scores and first column of sums.
  const int half_key = half * (kTileKeys / Product::kHalves);
  const int half_column = half * (T::kColumns / Product::kHalves);

  float* stream = shared_words();  // [stages][rows, columns] and [stages][keys, columns]
  float* stream_keys = stream + T::kStages * T::kQueryWords;
  float* scores_shared = stream_keys + T::kStages * T::kKeyWords;  // [rows, keys]
  float* row_scores = scores_shared + warp_row * T::kScoreStride;
  float* own_scores = row_scores + half_key;

  auto* number = reinterpret_cast<int*>(scores_shared);
  if (threadIdx.x == 0) *number = take_number(call.next_share);
  __syncthreads();
  const KeyShare share = KeyShare::of(call, *number, kSlices);
  const std::int64_t b = share.b;
  const std::int64_t kv = share.kv;
  const std::int32_t first_key = share.key_tile * kTileKeys;
  // A block's own chunks come first.
  const auto column_of = [&](int chunk) {
    return (share.slice * kOwnChunks + chunk) % T::kChunks * T::kColumns;
  };

  float key_sums[kOwnChunks][kSums] = {};
  float value_sums[kOwnChunks][kSums] = {};
  const ScoreRule rule = ScoreRule::of(call);
  QueryTiles query_tiles(call, tiling, share);

  enum Step { kScore, kGradient, kSum };
  const auto fill = [&](int step, int chunk, QueryTiles::Item item, int stage) {
    const ListHead head = ListHead::of(call, b, item.head);
    const Range rows = tiling.tile(item.tile, head.count_q);
    fill_tile<T::kRows, T::kColumns, T::kStride, T::kThreads>(
        stream + stage * T::kQueryWords,
        TileSource::choose(step == kGradient, TileSource::of(call.output_gradient, b, head.head, head.rows),
                           TileSource::of(call.query, b, head.head, head.rows)),
        rows.begin, rows.end, column_of(chunk), call.head_dim);
    fill_tile<kTileKeys, T::kColumns, T::kStride, T::kThreads>(
        stream_keys + stage * T::kKeyWords,
        TileSource::choose(step == kGradient, TileSource::of(call.value, b, kv, head.key_rows),
                           TileSource::of(call.key, b, kv, head.key_rows)),
        first_key, head.count_k, column_of(chunk), call.head_dim);
  };
  QueryTiles::Item current = query_tiles.next();
  QueryTiles::Item following{0, -1};
  int stage = 0;
  // Makes a step's chunk ready to use, and starts the next.
  const auto advance = [&](int step, int chunk) {
    if constexpr (T::kStages == 2) {
      wait_for_copies();
      __syncthreads();
      stage ^= 1;
      const bool last = chunk + 1 == (step == kSum ? kOwnChunks : T::kChunks);
      const QueryTiles::Item then = last && step == kSum ? following : current;
      if (then.tile >= 0) fill(last ? (step + 1) % 3 : step, last ? 0 : chunk + 1, then, stage ^ 1);
    } else {
      __syncthreads();
      fill(step, chunk, current, 0);
      wait_for_copies();
      __syncthreads();
    }
  };
  if constexpr (T::kStages == 2) {
    if (current.tile >= 0) fill(kScore, 0, current, 1);
  }

  while (current.tile >= 0) {
    following = query_tiles.next();
    const QueryTile queries = QueryTile::of(call, tiling, b, current);
    const TileMask mask = TileMask::of(queries.intervals, queries.list, first_key, lane);
    std::int32_t* turn = call.turn(b, current.head, current.tile * kSlices + share.slice);
    float shift[kSlots];
    float dot[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t at = queries.statistics(call, warp_row + Product::row(lane, s));
      shift[s] = at < 0 ? kInfinity : call.row_shift[at];
      dot[s] = at < 0 ? 0.0F : call.row_dot[at];
    }

    float scores[Product::kScores] = {};
#pragma unroll 1
    for (int c = 0; c < T::kChunks; ++c) {
      advance(kScore, c);
      Product::template add_scores<T::kColumns>(
          scores, stream + stage * T::kQueryWords + warp_row * T::kStride,
          stream_keys + stage * T::kKeyWords + half_key * T::kStride, lane);
    }
    make_probabilities<T>(scores, shift, rule, queries, mask, first_key, half_key, warp_row, lane);
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) own_scores[score_offset<T>(lane, e)] = scores[e];

    // The step's barrier makes P visible.
    float gradients[Product::kScores] = {};
#pragma unroll
    for (int c = 0; c < T::kChunks; ++c) {
      advance(kGradient, c);
      const float* rows = stream + stage * T::kQueryWords;
      Product::template add_scores<T::kColumns>(gradients, rows + warp_row * T::kStride,
                                                stream_keys + stage * T::kKeyWords + half_key * T::kStride,
                                                lane);
      if (c < kOwnChunks) {
        Product::template add_key_sums<T::kColumns>(value_sums[c < kOwnChunks ? c : 0],
                                                    scores_shared + warp_key, T::kScoreStride,
                                                    rows + half_column, T::kRows, lane);
      }
    }
    __syncthreads();
    // dS overwrites P.
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      const int s = Product::score_slot(e);
      float& score = own_scores[score_offset<T>(lane, e)];
      float gradient = score * (gradients[e] - dot[s]);
      if (rule.cap != 0) gradient *= cap_slope(score, shift[s], rule.factor);
      score = gradient;
    }

#pragma unroll
    for (int c = 0; c < kOwnChunks; ++c) {
      advance(kSum, c);
      Product::template add_key_sums<T::kColumns>(key_sums[c], scores_shared + warp_key, T::kScoreStride,
                                                  stream + stage * T::kQueryWords + half_column, T::kRows,
                                                  lane);
      float sums[Product::template kSums<T::kColumns>] = {};
      Product::template add_sums<T::kColumns>(sums, row_scores, T::kScoreStride,
                                              stream_keys + stage * T::kKeyWords + half_column, lane);
      if (c == 0 && call.turns != nullptr) {
        if (threadIdx.x == 0) {
          wait_for_turn_after(queries.previous(call, tiling, current.tile, share.key_tile), turn);
        }
        __syncthreads();
      }
      add_query_gradient<T>(call, queries, warp_row, column_of(c) + half_column, sums, lane);
    }
    if (call.turns != nullptr) {
      fence_device();
      __syncthreads();
      if (threadIdx.x == 0) give_turn(turn, share.key_tile);
    }
    current = following;
  }

  // Every head of the group that the call sums over has the same list, or there is one such head.
  const ListHead head = ListHead::of(call, b, kv * call.group() + call.group_begin);
#pragma unroll
  for (int c = 0; c < kOwnChunks; ++c) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      const std::int32_t i = first_key + warp_key + Product::template key_sum_row<T::kColumns>(lane, e);
      const int column = column_of(c) + half_column + Product::template key_sum_column<T::kColumns>(lane, e);
      if (i >= head.count_k || column >= call.head_dim) continue;
      const std::int64_t row = head.key_row(i);
      const auto at = [&](const TypedHeadsView& view) {
        return b * view.batch_stride + kv * view.head_stride + row * view.row_stride + column;
      };
      store_or_add(call.key_gradient, at(call.key_gradient), key_sums[c][e] * call.scale,
                   call.add_key_gradients);
      store_or_add(call.value_gradient, at(call.value_gradient), value_sums[c][e], call.add_key_gradients);
    }
  }
}

template <class T>
void launch_backward(const AttentionCall& call, const Stream& stream) {
  const QueryTiling tiling = QueryTiling::of(call.blocks.rows, call.seq_q, T::kRows);
  constexpr int kSlices = ceil_div(T::kHeadDim, kGradientColumns);
  static_assert(T::kRows >= kLeastTileRows);
  launch("interval_backward_kernel", interval_backward_kernel<T>,
         call.batch * call.heads_kv * call.lists.key_tiles * kSlices, T::kThreads, T::kBackwardBytes, stream,
         call, tiling);
}

}  // namespace headroom::cuda
