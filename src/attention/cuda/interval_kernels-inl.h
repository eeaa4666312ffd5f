// Forward, dQ, and dK with dV of attention on intervals, over a Product that says how tiles are multiplied
// and which lane holds what (fma_product.h). A block is four warps. Query rows are spread over the warps, the
// 64 keys of a tile over the lanes. head_dim goes through shared memory in chunks of N columns; chunks of
// the other operand follow each other through `kStages` buffers, the next one arriving while the current
// one is used. Every sum has one owner and one order: the same bits on every run.
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/lists-inl.h"
#include "cuda/device_code.h"

namespace headroom::cuda {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * kWarp;

// D: head_dim, rounded up; N: columns of a chunk.
template <class P, int D, int N, int Stages>
struct Tiling {
  using Product = P;
  static constexpr int kHeadDim = D;
  static constexpr int kColumns = N;
  static constexpr int kChunks = D / N;
  static constexpr int kStages = Stages;
  static constexpr bool kResident = Stages == 2;   // forward keeps all of Q in shared memory
  static constexpr int kRows = kWarps * P::kRows;  // queries of a tile
  static constexpr int kStride = N + P::kPad;      // words of a row in shared memory
  static constexpr int kQueryWords = kRows * kStride;
  static constexpr int kKeyWords = kTileKeys * kStride;
  static constexpr int kScoreStride = kTileKeys + P::kPad;
  static constexpr int kScoreWords = kRows * kScoreStride;
  static constexpr std::int64_t kForwardBytes =
      4 * ((kResident ? kChunks : 1) * kQueryWords + Stages * kKeyWords + kScoreWords);
  static constexpr std::int64_t kBackwardBytes = 4 * (Stages * (kQueryWords + kKeyWords) + kScoreWords);
};

// The rows of one head of one sequence, as a list has them.
struct HeadRows {
  const void* data;
  const std::int32_t* rows;  // null: row i is row i
  std::int64_t stride;
  DType dtype;
  bool aligned;

  __device__ static HeadRows of(const HeadsView& view, std::int64_t b, std::int64_t head,
                                const std::int32_t* rows) {
    const std::int64_t offset = b * view.batch_stride + head * view.head_stride;
    const std::int64_t bytes = view.dtype == DType::f32 ? 4 : 2;
    return {static_cast<const char*>(view.data) + offset * bytes, rows, view.row_stride, view.dtype,
            view.aligned};
  }
  // Field by field: a choice of addresses would put both in local memory.
  __device__ static HeadRows choose(bool first, const HeadRows& a, const HeadRows& b) {
    return {first ? a.data : b.data, a.rows, first ? a.stride : b.stride, a.dtype,
            first ? a.aligned : b.aligned};
  }
  __device__ std::int64_t row(std::int32_t i) const { return rows == nullptr ? i : rows[i]; }
};

// to <- columns [column, column + N) of rows [first, end), and zeros up to Rows rows and N columns
template <int Rows, int N, int Stride>
__device__ __forceinline__ void fill_tile(float* to, const HeadRows& from, std::int32_t first,
                                          std::int32_t end, int column, int head_dim) {
  constexpr int kVectors = N / 4;
  constexpr int kStep = kThreads / kVectors;  // rows that the block moves at once
  const int c = static_cast<int>(threadIdx.x) % kVectors * 4;
  const int r = static_cast<int>(threadIdx.x) / kVectors;
  const bool inside = column + c < head_dim;
  float* shared = to + r * Stride + c;
  if (from.dtype == DType::f32 && from.aligned && from.rows == nullptr) {
    const float* source =
        static_cast<const float*>(from.data) + (first + r) * from.stride + (inside ? column + c : 0);
#pragma unroll
    for (int i = 0; i < Rows; i += kStep) {
      if (Rows % kStep != 0 && r + i >= Rows) break;
      copy_sixteen(shared, source, inside && first + r + i < end);
      shared += kStep * Stride;
      source += kStep * from.stride;
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < Rows; i += kStep) {
    if (Rows % kStep != 0 && r + i >= Rows) break;
    float4 four = make_float4(0, 0, 0, 0);
    const std::int32_t at = first + r + i;
    if (inside && at < end) {
      four = load_four(from.data, from.dtype, from.row(at) * from.stride + column + c, from.aligned);
    }
    *reinterpret_cast<float4*>(shared) = four;
    shared += kStep * Stride;
  }
}

// Which of a tile's scores count.
struct TileMask {
  bool partial = false;
  std::uint64_t keys = ~std::uint64_t{0};  // by block list

  __device__ static TileMask of(const TileIntervals& intervals, const BlockList& list, std::int32_t first,
                                int lane) {
    TileMask mask;
    mask.partial = !intervals.covers({first, first + kTileKeys});
    if (list.blocks == nullptr) return mask;
    const std::uint32_t low = __ballot_sync(0xffffffffu, list.touches({first + lane, first + lane + 1}));
    const std::uint32_t high =
        __ballot_sync(0xffffffffu, list.touches({first + lane + kWarp, first + lane + kWarp + 1}));
    mask.keys = static_cast<std::uint64_t>(high) << 32 | low;
    mask.partial |= mask.keys != ~std::uint64_t{0};
    return mask;
  }
  __device__ bool sees(Range interval, std::int32_t first, int column) const {
    const std::int32_t key = first + column;
    return interval.begin <= key && key < interval.end && (keys >> column & 1) != 0;
  }
};

// What a row of a tile sees; a row past the tile's end nothing.
__device__ __forceinline__ Range row_interval(const std::int32_t* first, const std::int32_t* last, Range rows,
                                              int row) {
  const std::int32_t i = rows.begin + row;
  return i < rows.end ? Range{first[i], last[i]} : Range{};
}

// How scores become exponents of two: x <- factor s, or factor tanh(inner s).
struct ScoreRule {
  float factor;
  float cap;  // 0: off
  float inner;

  __device__ static ScoreRule of(const AttentionCall& call) {
    if (call.softcap == 0) return {call.scale * kLog2E, 0, 0};
    return {kLog2E * call.softcap, call.softcap, call.scale / call.softcap};
  }
};

// One query head of one sequence, and what the kernels ask of its list.
struct ListHead {
  std::int64_t b;
  std::int64_t head;
  const std::int32_t* rows;
  const std::int32_t* first;
  const std::int32_t* last;
  std::int32_t count_q;
  std::int32_t count_k;

  __device__ static ListHead of(const AttentionCall& call, std::int64_t b, std::int64_t head) {
    const std::int64_t list = call.list_of(b, head);
    const std::int64_t at = list * call.lists.capacity;
    const bool some = call.lists.rows != nullptr;
    return {b,
            head,
            some ? call.lists.rows + at : nullptr,
            call.lists.first + at,
            call.lists.last + at,
            some ? call.lists.counts[list] : call.seq_q,
            some ? call.lists.counts[list] : call.seq_k};
  }
  __device__ std::int64_t row(std::int32_t i) const { return rows == nullptr ? i : rows[i]; }
};

__device__ __forceinline__ float* shared_words() {
#if defined(__CUDACC__)
  extern __shared__ float4 shared_memory[];
#endif
  return reinterpret_cast<float*>(shared_memory);
}

// O <- softmax(Q K^T) V of one tile of queries
template <class T>
__global__ void __launch_bounds__(kThreads, T::kForwardBytes > (100 << 10) ? 1 : 2)
    interval_forward_kernel(AttentionCall call, QueryTiling tiling, std::int64_t tiles) {
  using Product = typename T::Product;
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
  const HeadRows keys = HeadRows::of(call.key, head.b, kv, head.rows);
  const HeadRows values = HeadRows::of(call.value, head.b, kv, head.rows);
  const int chunks = (call.head_dim + T::kColumns - 1) / T::kColumns;

  float* query = shared_words();  // [chunks, or one of them][rows, columns]
  float* stream = query + (T::kResident ? T::kChunks : 1) * T::kQueryWords;  // [stages][keys, columns]
  float* scores_shared = stream + T::kStages * T::kKeyWords + warp_row * T::kScoreStride;
  const auto fill = [&](const HeadRows& from, std::int32_t key_tile, int chunk, int stage) {
    fill_tile<kTileKeys, T::kColumns, T::kStride>(stream + stage * T::kKeyWords, from, key_tile * kTileKeys,
                                                  head.count_k, chunk * T::kColumns, call.head_dim);
  };
  const auto fill_query = [&](float* to, int chunk) {
    fill_tile<T::kRows, T::kColumns, T::kStride>(to, HeadRows::of(call.query, head.b, head.head, head.rows),
                                                 rows.begin, rows.end, chunk * T::kColumns, call.head_dim);
  };
  if constexpr (T::kResident) {
    for (int c = 0; c < chunks; ++c) fill_query(query + c * T::kQueryWords, c);
  }

  // The softmax so far: nothing, the sink, or an earlier result.
  float row_max[kSlots];
  float row_sum[kSlots];  // this lane's part
  float sums[T::kChunks][kSums] = {};
  const std::int64_t statistics = call.statistics(head.b, head.head);
  const HeadRows output = HeadRows::of(call.output, head.b, head.head, head.rows);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    row_max[s] = -infinity();
    const std::int32_t i = rows.begin + warp_row + Product::row(lane, s);
    if (i < rows.end && call.resume) {
      row_max[s] = call.lse[statistics + head.row(i)] * kLog2E;
    } else if (i < rows.end && call.sinks != nullptr) {
      row_max[s] = call.sinks[head.head] * kLog2E;
    }
    row_sum[s] = row_max[s] == -infinity() || lane % Product::kPeers != 0 ? 0.0F : 1.0F;
  }
  if (call.resume) {
#pragma unroll
    for (int c = 0; c < T::kChunks; ++c) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) {
        const std::int32_t i =
            rows.begin + warp_row + Product::row(lane, Product::template sum_slot<T::kColumns>(e));
        const int column = c * T::kColumns + Product::template sum_column<T::kColumns>(lane, e);
        if (i < rows.end && column < call.head_dim) {
          sums[c][e] = load_element(output.data, output.dtype, head.row(i) * output.stride + column);
        }
      }
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
      if (then >= 0) fill(HeadRows::choose(to_keys, keys, values), then, last ? 0 : chunk + 1, stage ^ 1);
    } else {
      __syncthreads();
      if (step == kScore) fill_query(query, chunk);
      fill(HeadRows::choose(step == kScore, keys, values), current, chunk, 0);
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
      for (int e = 0; e < Product::kScores; ++e) scores[e] = tanhf(rule.inner * scores[e]);
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
          scores[e] = -infinity();
        }
      }
    }
    // m' <- max(m, rows of x); P <- 2^(x - m'); l <- 2^(m - m') l + rows of P; O <- 2^(m - m') O
    float highest[kSlots];
    float shift[kSlots];
    float rescale[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) highest[s] = -infinity();
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
      shift[s] = higher == -infinity() ? 0.0F : higher;
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

  // O <- O / l; LSE <- m + log l
  float inverse[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int step = 1; step < Product::kPeers; step *= 2) {
      row_sum[s] += __shfl_xor_sync(0xffffffffu, row_sum[s], step);
    }
    inverse[s] = row_sum[s] > 0 ? 1.0F / row_sum[s] : 0.0F;
    const std::int32_t i = rows.begin + warp_row + Product::row(lane, s);
    if (i < rows.end && lane % Product::kPeers == 0) {
      call.lse[statistics + head.row(i)] =
          row_sum[s] > 0 ? row_max[s] * kLn2 + logf(row_sum[s]) : -infinity();
    }
  }
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      const int slot = Product::template sum_slot<T::kColumns>(e);
      const std::int32_t i = rows.begin + warp_row + Product::row(lane, slot);
      const int column = c * T::kColumns + Product::template sum_column<T::kColumns>(lane, e);
      if (i < rows.end && column < call.head_dim) {
        store_element(call.output.data, call.output.dtype,
                      head.b * call.output.batch_stride + head.head * call.output.head_stride +
                          head.row(i) * call.output.row_stride + column,
                      sums[c][e] * inverse[slot]);
      }
    }
  }
}

// What backward knows of a row: P <- 2^(x - shift), dS <- P (dP - dot).
struct RowStatistics {
  float shift;
  float dot;
};
__device__ __forceinline__ RowStatistics row_statistics(const AttentionCall& call, const ListHead& head,
                                                        Range rows, int row) {
  const std::int32_t i = rows.begin + row;
  if (i >= rows.end) return {infinity(), 0};
  const std::int64_t at = call.statistics(head.b, head.head) + head.row(i);
  return {call.row_shift[at], call.row_dot[at]};
}

// scores <- P, dP <- dS of one tile, from S and dP; zeros where a query does not see a key
template <class T>
__device__ __forceinline__ void score_gradients(float (&scores)[T::Product::kScores],
                                                float (&gradients)[T::Product::kScores],
                                                const AttentionCall& call, const ScoreRule& rule,
                                                const ListHead& head, Range rows, int warp_row,
                                                const TileMask& mask, std::int32_t first_key, int lane) {
  using Product = typename T::Product;
  RowStatistics statistics[Product::kSlots];
#pragma unroll
  for (int s = 0; s < Product::kSlots; ++s) {
    statistics[s] = row_statistics(call, head, rows, warp_row + Product::row(lane, s));
  }
  if (rule.cap != 0) {
    // dP - dot is scaled by the cap's slope; then the rest is as without one
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      scores[e] = tanhf(rule.inner * scores[e]);
      const float slope = 1.0F - scores[e] * scores[e];
      gradients[e] = slope * (gradients[e] - statistics[Product::score_slot(e)].dot);
    }
#pragma unroll
    for (int s = 0; s < Product::kSlots; ++s) statistics[s].dot = 0;
  }
#pragma unroll
  for (int e = 0; e < Product::kScores; ++e) {
    const RowStatistics& row = statistics[Product::score_slot(e)];
    scores[e] = power_of_two(fmaf(scores[e], rule.factor, -row.shift));
    gradients[e] = scores[e] * (gradients[e] - row.dot);
  }
  if (!mask.partial) return;
#pragma unroll
  for (int s = 0; s < Product::kSlots; ++s) {
    const Range seen = row_interval(head.first, head.last, rows, warp_row + Product::row(lane, s));
#pragma unroll
    for (int e = 0; e < Product::kScores; ++e) {
      if (Product::score_slot(e) != s) continue;
      if (!mask.sees(seen, first_key, Product::score_column(lane, e))) {
        scores[e] = 0;
        gradients[e] = 0;
      }
    }
  }
}

// shared <- the lane's scores
template <class T>
__device__ __forceinline__ void share_scores(float* shared, const float (&scores)[T::Product::kScores],
                                             int lane) {
  using Product = typename T::Product;
#pragma unroll
  for (int e = 0; e < Product::kScores; ++e) {
    shared[Product::row(lane, Product::score_slot(e)) * T::kScoreStride + Product::score_column(lane, e)] =
        scores[e];
  }
}

__device__ __forceinline__ void store_or_add(const HeadsView& view, std::int64_t at, float value, bool add) {
  if (add) value += load_element(view.data, view.dtype, at);
  store_element(view.data, view.dtype, at, value);
}

// dQ <- scale dS K of one tile of queries
template <class T>
__global__ void __launch_bounds__(kThreads, T::kHeadDim > 128 ? 1 : 2)
    interval_backward_queries_kernel(AttentionCall call, QueryTiling tiling, std::int64_t tiles) {
  using Product = typename T::Product;
  constexpr int kSums = Product::template kSums<T::kColumns>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * Product::kRows;
  const std::int64_t tile = tiles - 1 - static_cast<std::int64_t>(blockIdx.x) % tiles;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) / tiles;
  const ListHead head = ListHead::of(call, item / call.heads_q, item % call.heads_q);
  const Range rows = tiling.tile(tile, head.count_q);
  if (rows.empty()) return;
  const TileIntervals intervals = TileIntervals::of(head.first, head.last, rows);
  const BlockList list = call.block_list(head.b, head.head, tiling.block_of(tile));
  const std::int64_t kv = head.head / call.group();
  const HeadRows queries = HeadRows::of(call.query, head.b, head.head, head.rows);
  const HeadRows gradients = HeadRows::of(call.output_gradient, head.b, head.head, head.rows);
  const HeadRows keys = HeadRows::of(call.key, head.b, kv, head.rows);
  const HeadRows values = HeadRows::of(call.value, head.b, kv, head.rows);
  const int chunks = (call.head_dim + T::kColumns - 1) / T::kColumns;

  float* stream = shared_words();  // [stages][rows, columns] and [stages][keys, columns]
  float* stream_keys = stream + T::kStages * T::kQueryWords;
  float* scores_shared = stream_keys + T::kStages * T::kKeyWords + warp_row * T::kScoreStride;
  float sums[T::kChunks][kSums] = {};
  const ScoreRule rule = ScoreRule::of(call);

  // Steps of a tile of keys: dO with V, Q with K, then K, each in chunks.
  enum Step { kGradient, kScore, kSum };
  const auto fill = [&](int step, int chunk, std::int32_t key_tile, int stage) {
    const int column = chunk * T::kColumns;
    if (step != kSum) {
      fill_tile<T::kRows, T::kColumns, T::kStride>(stream + stage * T::kQueryWords,
                                                   HeadRows::choose(step == kGradient, gradients, queries),
                                                   rows.begin, rows.end, column, call.head_dim);
    }
    fill_tile<kTileKeys, T::kColumns, T::kStride>(stream_keys + stage * T::kKeyWords,
                                                  HeadRows::choose(step == kGradient, values, keys),
                                                  key_tile * kTileKeys, head.count_k, column, call.head_dim);
  };
  KeyTiles key_tiles(intervals.some, kTileKeys, list);
  std::int32_t current = key_tiles.next();
  std::int32_t following = -1;
  int stage = 0;
  const auto advance = [&](int step, int chunk) {
    if constexpr (T::kStages == 2) {
      wait_for_copies();
      __syncthreads();
      stage ^= 1;
      const bool last = chunk + 1 == chunks;
      const bool done = last && step == kSum;
      const std::int32_t then = done ? following : current;
      if (then >= 0) {
        fill(done ? static_cast<int>(kGradient) : step + (last ? 1 : 0), last ? 0 : chunk + 1, then,
             stage ^ 1);
      }
    } else {
      __syncthreads();
      fill(step, chunk, current, 0);
      wait_for_copies();
      __syncthreads();
    }
  };
  if constexpr (T::kStages == 2) {
    if (current >= 0) fill(kGradient, 0, current, 1);
  }

  while (current >= 0) {
    following = key_tiles.next();
    float gradient[Product::kScores] = {};
    float scores[Product::kScores] = {};
    // dP <- dO V^T; S <- Q K^T
    for (int c = 0; c < chunks; ++c) {
      advance(kGradient, c);
      Product::template add_scores<T::kColumns>(gradient,
                                                stream + stage * T::kQueryWords + warp_row * T::kStride,
                                                stream_keys + stage * T::kKeyWords, lane);
    }
    for (int c = 0; c < chunks; ++c) {
      advance(kScore, c);
      Product::template add_scores<T::kColumns>(scores,
                                                stream + stage * T::kQueryWords + warp_row * T::kStride,
                                                stream_keys + stage * T::kKeyWords, lane);
    }
    const std::int32_t first_key = current * kTileKeys;
    const TileMask mask = TileMask::of(intervals, list, first_key, lane);
    score_gradients<T>(scores, gradient, call, rule, head, rows, warp_row, mask, first_key, lane);
    share_scores<T>(scores_shared, gradient, lane);
    __syncwarp();
    // dQ <- dQ + dS K
#pragma unroll
    for (int c = 0; c < T::kChunks; ++c) {
      if (c >= chunks) break;
      advance(kSum, c);
      Product::template add_sums<T::kColumns>(sums[c], scores_shared, T::kScoreStride,
                                              stream_keys + stage * T::kKeyWords, lane);
    }
    current = following;
  }
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      const std::int32_t i =
          rows.begin + warp_row + Product::row(lane, Product::template sum_slot<T::kColumns>(e));
      const int column = c * T::kColumns + Product::template sum_column<T::kColumns>(lane, e);
      if (i < rows.end && column < call.head_dim) {
        const HeadsView& view = call.query_gradient;
        store_or_add(view,
                     head.b * view.batch_stride + head.head * view.head_stride +
                         head.row(i) * view.row_stride + column,
                     sums[c][e] * call.scale, call.add_query_gradient);
      }
    }
  }
}

// The tiles of queries that a tile of keys works on: head after head of its group, rising.
struct QueryTiles {
  const AttentionCall& call;
  const QueryTiling& tiling;
  std::int64_t b;
  std::int64_t kv;
  std::int32_t key_tile;
  std::int64_t member;
  std::int64_t tile = 0;
  std::int64_t end = 0;
  bool opened = false;

  struct Item {
    std::int32_t head;
    std::int32_t tile;  // -1: there are no more
  };
  __device__ Item next() {
    const Range keys{key_tile * kTileKeys, (key_tile + 1) * kTileKeys};
    for (; member < call.member_end; ++member, opened = false) {
      const std::int64_t head = kv * call.group() + member;
      if (!opened) {
        opened = true;
        const Range rows = call.lists.visitors[call.list_of(b, head) * call.lists.key_tiles + key_tile];
        tile = rows.empty() ? 0 : tiling.tile_of(rows.begin);
        end = rows.empty() ? 0 : tiling.tile_of(rows.end - 1) + 1;
      }
      for (; tile < end; ++tile) {
        if (!call.block_list(b, head, tiling.block_of(tile)).touches(keys)) continue;
        return {static_cast<std::int32_t>(head), static_cast<std::int32_t>(tile++)};
      }
    }
    return {0, -1};
  }
};

// dK <- scale dS^T Q, dV <- P^T dO of one tile of keys; of them, where head_dim is over kGradientColumns,
// so many columns
inline constexpr int kGradientColumns = 128;

template <class T>
__global__ void __launch_bounds__(kThreads, T::kHeadDim > 64 ? 1 : 2)
    interval_backward_keys_kernel(AttentionCall call, QueryTiling tiling) {
  using Product = typename T::Product;
  constexpr int kSums = Product::template kKeySums<T::kColumns>;
  constexpr int kOwnColumns = T::kHeadDim < kGradientColumns ? T::kHeadDim : kGradientColumns;
  constexpr int kOwnChunks = kOwnColumns / T::kColumns;
  constexpr int kParts = T::kHeadDim / kOwnColumns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp * Product::kRows;
  const int warp_key = warp * (kTileKeys / kWarps);
  const std::int64_t tiles = call.lists.key_tiles;
  const int first_chunk = static_cast<int>(blockIdx.x % kParts) * kOwnChunks;
  const std::int64_t block = blockIdx.x / kParts;
  const auto key_tile = static_cast<std::int32_t>(block % tiles);
  const std::int64_t b = block / tiles / call.heads_kv;
  const std::int64_t kv = block / tiles % call.heads_kv;
  const int chunks = (call.head_dim + T::kColumns - 1) / T::kColumns;
  // Of the chunks, those of this block.
  const int own_chunks = least(most(chunks - first_chunk, 0), kOwnChunks);
  if (own_chunks == 0) return;
  const std::int32_t first_key = key_tile * kTileKeys;

  float* stream = shared_words();  // [stages][rows, columns] and [stages][keys, columns]
  float* stream_keys = stream + T::kStages * T::kQueryWords;
  float* scores_shared = stream_keys + T::kStages * T::kKeyWords;  // [rows, keys]
  float key_sums[kOwnChunks][kSums] = {};
  float value_sums[kOwnChunks][kSums] = {};
  const ScoreRule rule = ScoreRule::of(call);

  QueryTiles query_tiles{call, tiling, b, kv, key_tile, call.member_begin};

  // Steps of a tile of queries: dO with V, Q with K, then dO and Q alone, each in chunks.
  enum Step { kGradient, kScore, kValueSum, kKeySum };
  const auto fill = [&](int step, int chunk, QueryTiles::Item visit, int stage) {
    const ListHead head = ListHead::of(call, b, visit.head);
    const Range rows = tiling.tile(visit.tile, head.count_q);
    const int column = chunk * T::kColumns;
    const bool gradient = step == kGradient || step == kValueSum;
    fill_tile<T::kRows, T::kColumns, T::kStride>(
        stream + stage * T::kQueryWords,
        HeadRows::choose(gradient, HeadRows::of(call.output_gradient, b, head.head, head.rows),
                         HeadRows::of(call.query, b, head.head, head.rows)),
        rows.begin, rows.end, column, call.head_dim);
    if (step == kGradient || step == kScore) {
      fill_tile<kTileKeys, T::kColumns, T::kStride>(
          stream_keys + stage * T::kKeyWords,
          HeadRows::choose(gradient, HeadRows::of(call.value, b, kv, head.rows),
                           HeadRows::of(call.key, b, kv, head.rows)),
          first_key, head.count_k, column, call.head_dim);
    }
  };
  QueryTiles::Item current = query_tiles.next();
  QueryTiles::Item following{0, -1};
  int stage = 0;
  const auto advance = [&](int step, int chunk) {
    if constexpr (T::kStages == 2) {
      wait_for_copies();
      __syncthreads();
      stage ^= 1;
      const int steps_end = step == kGradient || step == kScore ? chunks : first_chunk + own_chunks;
      const bool last = chunk + 1 == steps_end;
      const int then = last ? (step + 1) % 4 : step;
      const int then_chunk = !last ? chunk + 1 : then == kValueSum || then == kKeySum ? first_chunk : 0;
      if (!(last && step == kKeySum)) {
        fill(then, then_chunk, current, stage ^ 1);
      } else if (following.tile >= 0) {
        fill(then, then_chunk, following, stage ^ 1);
      }
    } else {
      __syncthreads();
      fill(step, chunk, current, 0);
      wait_for_copies();
      __syncthreads();
    }
  };
  if constexpr (T::kStages == 2) {
    if (current.tile >= 0) fill(kGradient, 0, current, 1);
  }

  while (current.tile >= 0) {
    following = query_tiles.next();
    float gradient[Product::kScores] = {};
    float scores[Product::kScores] = {};
    // dP <- dO V^T; S <- Q K^T
    for (int c = 0; c < chunks; ++c) {
      advance(kGradient, c);
      Product::template add_scores<T::kColumns>(gradient,
                                                stream + stage * T::kQueryWords + warp_row * T::kStride,
                                                stream_keys + stage * T::kKeyWords, lane);
    }
    for (int c = 0; c < chunks; ++c) {
      advance(kScore, c);
      Product::template add_scores<T::kColumns>(scores,
                                                stream + stage * T::kQueryWords + warp_row * T::kStride,
                                                stream_keys + stage * T::kKeyWords, lane);
    }
    const ListHead head = ListHead::of(call, b, current.head);
    const Range rows = tiling.tile(current.tile, head.count_q);
    const TileMask mask =
        TileMask::of(TileIntervals::of(head.first, head.last, rows),
                     call.block_list(b, head.head, tiling.block_of(current.tile)), first_key, lane);
    score_gradients<T>(scores, gradient, call, rule, head, rows, warp_row, mask, first_key, lane);
    // dV <- dV + P^T dO. The step's barrier makes P visible; the one after it lets dS take its place.
    share_scores<T>(scores_shared + warp_row * T::kScoreStride, scores, lane);
#pragma unroll
    for (int c = 0; c < kOwnChunks; ++c) {
      if (c >= own_chunks) break;
      advance(kValueSum, first_chunk + c);
      Product::template add_key_sums<T::kColumns>(value_sums[c], scores_shared + warp_key, T::kScoreStride,
                                                  stream + stage * T::kQueryWords, T::kRows, lane);
    }
    __syncthreads();
    // dK <- dK + dS^T Q
    share_scores<T>(scores_shared + warp_row * T::kScoreStride, gradient, lane);
#pragma unroll
    for (int c = 0; c < kOwnChunks; ++c) {
      if (c >= own_chunks) break;
      advance(kKeySum, first_chunk + c);
      Product::template add_key_sums<T::kColumns>(key_sums[c], scores_shared + warp_key, T::kScoreStride,
                                                  stream + stage * T::kQueryWords, T::kRows, lane);
    }
    current = following;
  }

  // Every member of the call has the same list, or there is one member.
  const ListHead head = ListHead::of(call, b, kv * call.group() + call.member_begin);
#pragma unroll
  for (int c = 0; c < kOwnChunks; ++c) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      const std::int32_t i = first_key + warp_key + Product::template key_sum_row<T::kColumns>(lane, e);
      const int column =
          (first_chunk + c) * T::kColumns + Product::template key_sum_column<T::kColumns>(lane, e);
      if (i < head.count_k && column < call.head_dim) {
        const std::int64_t row = head.row(i);
        const auto at = [&](const HeadsView& view) {
          return b * view.batch_stride + kv * view.head_stride + row * view.row_stride + column;
        };
        store_or_add(call.key_gradient, at(call.key_gradient), key_sums[c][e] * call.scale,
                     call.add_key_gradients);
        store_or_add(call.value_gradient, at(call.value_gradient), value_sums[c][e], call.add_key_gradients);
      }
    }
  }
}

// ---- launches

template <class T>
void launch_forward(const AttentionCall& call, const Stream& stream) {
  const QueryTiling tiling = QueryTiling::of(call.block_rows, call.seq_q, T::kRows);
  const std::int64_t tiles = tiling.count(call.lists.capacity);
  launch("interval_forward_kernel", interval_forward_kernel<T>, call.batch * call.heads_q * tiles, kThreads,
         T::kForwardBytes, stream, call, tiling, tiles);
}

template <class T>
void launch_backward_queries(const AttentionCall& call, const Stream& stream) {
  const QueryTiling tiling = QueryTiling::of(call.block_rows, call.seq_q, T::kRows);
  const std::int64_t tiles = tiling.count(call.lists.capacity);
  launch("interval_backward_queries_kernel", interval_backward_queries_kernel<T>,
         call.batch * call.heads_q * tiles, kThreads, T::kBackwardBytes, stream, call, tiling, tiles);
}

template <class T>
void launch_backward_keys(const AttentionCall& call, const Stream& stream) {
  const QueryTiling tiling = QueryTiling::of(call.block_rows, call.seq_q, T::kRows);
  constexpr int kParts = T::kHeadDim > kGradientColumns ? T::kHeadDim / kGradientColumns : 1;
  launch("interval_backward_keys_kernel", interval_backward_keys_kernel<T>,
         call.batch * call.heads_kv * call.lists.key_tiles * kParts, kThreads, T::kBackwardBytes, stream,
         call, tiling);
}

// body.template operator()<D>() with the smallest tile that holds head_dim.
template <class Body>
void with_head_dim(int head_dim, const Body& body) {
  if (head_dim <= 16) {
    body.template operator()<16>();
  } else if (head_dim <= 32) {
    body.template operator()<32>();
  } else if (head_dim <= 64) {
    body.template operator()<64>();
  } else if (head_dim <= 128) {
    body.template operator()<128>();
  } else {
    body.template operator()<256>();
  }
}

}  // namespace headroom::cuda
