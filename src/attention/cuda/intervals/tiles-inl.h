// What forward and backward on intervals share. Both are written over a Product that says how tiles are
// multiplied and which lane holds what (fma_product.h, tf32_product.h). A block is four groups of one or two
// warps. Query rows are spread over the groups, the 64 keys of a tile over the lanes of one. head_dim goes
// through shared memory in chunks of N columns, which follow each other through `kStages` buffers: with two,
// the next one arrives while the current one is used.
#pragma once

#include "attention/cuda/intervals/kernels.h"
#include "attention/cuda/row_softmax.h"
#include "cuda/device_code.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {

inline constexpr int kRowGroups = 4;  // of warps: they have different rows

// D: head_dim, rounded up; N: columns of a chunk; Blocks: of backward, side by side on a multiprocessor.
template <class P, int D, int N, int Stages, int Blocks = 2>
struct Tiling {
  using Product = P;
  static constexpr int kHeadDim = D;
  static constexpr int kColumns = N;
  static constexpr int kChunks = D / N;
  static constexpr int kStages = Stages;
  static constexpr int kBackwardBlocks = Blocks;
  static constexpr bool kResident = Stages == 2;  // forward keeps all of Q in shared memory
  static constexpr int kThreads = kRowGroups * P::kHalves * kWarp;
  static constexpr int kRows = kRowGroups * P::kRows;  // queries of a tile
  static constexpr int kStride = N + P::kPad;          // words of a row in shared memory
  static constexpr int kQueryWords = kRows * kStride;
  static constexpr int kKeyWords = kTileKeys * kStride;
  static constexpr int kScoreStride = kTileKeys + P::kPad;
  static constexpr int kScoreWords = kRows * kScoreStride;
  static constexpr std::int64_t kForwardBytes =
      4 * ((kResident ? kChunks : 1) * kQueryWords + Stages * kKeyWords + kScoreWords);
  static constexpr std::int64_t kBackwardBytes = 4 * (Stages * (kQueryWords + kKeyWords) + kScoreWords);
};

// The rows of one head of one sequence, as a list has them.
struct TileSource {
  const void* data;
  const std::int32_t* rows;  // null: row i is row i
  std::int64_t stride;
  DType dtype;
  bool aligned;
  bool copies;  // f32 rows one after the other: shared memory takes them as they are

  __device__ static TileSource of(const TypedHeadsView& view, std::int64_t b, std::int64_t head,
                                  const std::int32_t* rows) {
    const std::int64_t offset = b * view.batch_stride + head * view.head_stride;
    const std::int64_t bytes = view.dtype == DType::f32 ? 4 : 2;
    return {static_cast<const char*>(view.data) + offset * bytes,
            rows,
            view.row_stride,
            view.dtype,
            view.aligned,
            view.dtype == DType::f32 && view.aligned && rows == nullptr};
  }
  // Field by field: a choice of addresses would put both in local memory.
  __device__ static TileSource choose(bool first, const TileSource& a, const TileSource& b) {
    return {first ? a.data : b.data,       a.rows,
            first ? a.stride : b.stride,   first ? a.dtype : b.dtype,
            first ? a.aligned : b.aligned, first ? a.copies : b.copies};
  }
  __device__ std::int64_t row(std::int32_t i) const { return rows == nullptr ? i : rows[i]; }
};

// Rows that have to be looked up or widened. Kept out of the loops that call it: their code has to stay in
// the instruction cache.
template <int Rows, int N, int Stride, int kThreads>
__device__ __noinline__ void fill_converted(float* to, TileSource from, std::int32_t first, std::int32_t end,
                                            int column, int head_dim) {
  constexpr int kVectors = N / 4;
  constexpr int kStep = kThreads / kVectors;
  const int c = static_cast<int>(threadIdx.x) % kVectors * 4;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / kVectors; r < Rows; r += kStep) {
    float4 four = make_float4(0, 0, 0, 0);
    if (column + c < head_dim && first + r < end) {
      four = load_four(from.data, from.dtype, from.row(first + r) * from.stride + column + c, from.aligned);
    }
    *reinterpret_cast<float4*>(to + r * Stride + c) = four;
  }
}

// to <- columns [column, column + N) of rows [first, end), and zeros up to Rows rows and N columns
template <int Rows, int N, int Stride, int kThreads>
__device__ __forceinline__ void fill_tile(float* to, const TileSource& from, std::int32_t first,
                                          std::int32_t end, int column, int head_dim) {
  if (!from.copies) {
    fill_converted<Rows, N, Stride, kThreads>(to, from, first, end, column, head_dim);
    return;
  }
  constexpr int kVectors = N / 4;
  constexpr int kStep = kThreads / kVectors;  // rows that the block moves at once
  const int c = static_cast<int>(threadIdx.x) % kVectors * 4;
  const int r = static_cast<int>(threadIdx.x) / kVectors;
  const bool inside = column + c < head_dim;
  const std::int32_t rows = inside ? end - first - r : 0;  // of this thread's, from its first
  float* shared = to + r * Stride + c;
  const float* source =
      static_cast<const float*>(from.data) + (first + r) * from.stride + (inside ? column + c : 0);
#pragma unroll
  for (int i = 0; i < Rows; i += kStep) {
    if (Rows % kStep != 0 && r + i >= Rows) break;
    copy_sixteen(shared + i * Stride, source, i < rows);
    source += kStep * from.stride;
  }
}

// Bit i: key first + i is listed.
__device__ __noinline__ inline std::uint64_t listed_keys(BlockList list, std::int32_t first, int lane) {
  const std::uint32_t low = __ballot_sync(0xffffffffu, list.touches({first + lane, first + lane + 1}));
  const std::uint32_t high =
      __ballot_sync(0xffffffffu, list.touches({first + lane + kWarp, first + lane + kWarp + 1}));
  return static_cast<std::uint64_t>(high) << 32 | low;
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
    mask.keys = listed_keys(list, first, lane);
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

// Called, not inlined: nearly every score of nearly every model is not capped.
__device__ __noinline__ inline float capped(float x) {
  return tanhf(x);
}

// 1 - tanh^2 of a capped score, from the probability it led to: x = log2 P + shift = factor tanh
__device__ __noinline__ inline float cap_slope(float probability, float shift, float factor) {
  if (probability == 0) return 0;
  const float tangent = (log2f(probability) + shift) / factor;
  return 1.0F - tangent * tangent;
}

__device__ __forceinline__ void store_or_add(const TypedHeadsView& view, std::int64_t at, float value,
                                             bool add) {
  if (add) value += load_element(view.data, view.dtype, at);
  store_element(view.data, view.dtype, at, value);
}

// One query head of one sequence, and what the kernels ask of its list.
struct ListHead {
  std::int64_t b;
  std::int64_t head;
  const std::int32_t* rows;  // of queries
  const std::int32_t* key_rows;
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
            some ? call.lists.key_rows + list * call.lists.key_capacity : nullptr,
            call.lists.first + at,
            call.lists.last + at,
            some ? call.lists.counts[list] : call.seq_q,
            some ? call.lists.key_counts[list] : call.seq_k};
  }
  __device__ std::int64_t row(std::int32_t i) const { return rows == nullptr ? i : rows[i]; }
  __device__ std::int64_t key_row(std::int32_t i) const { return key_rows == nullptr ? i : key_rows[i]; }
};

__device__ __forceinline__ float* shared_words() {
#if defined(__CUDACC__)
  extern __shared__ float4 shared_memory[];
#endif
  return reinterpret_cast<float*>(shared_memory);
}

}  // namespace headroom::cuda
