// What the forward and backward kernels for Hopper share.
#pragma once

#include <cmath>

#include "attention/cuda/sm90/calls.h"
#include "attention/cuda/sm90/tiles.h"
#include "cuda/frame.h"
#include "cuda/ptx/global.h"
#include "cuda/ptx/tma.h"

namespace headroom::cuda::sm90 {

inline constexpr int kTileColumns = 64;  // of 16-bit elements in a 128-byte row of shared memory

// What every kernel's shape has; `general` kernels are those with a softcap and block lists.
template <class ElementType, int kHead, bool kOfGeneral, int kConsumers = 2>
struct KernelShape : Roles<kConsumers, kConsumers == 2 ? 232 : 160> {
  using Element = ElementType;
  static constexpr bool kGeneral = kOfGeneral;
  static constexpr int kHeadDim = kHead;
  static constexpr int kColumns = (kHead + kTileColumns - 1) / kTileColumns * kTileColumns;
};

// A thread's two rows of its warpgroup's 64, eight apart, and its two columns of every eight: the first of
// each.
__device__ __forceinline__ int row_of_thread(int first_row = 0) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  return first_row + thread / 32 * 16 + thread % 32 / 4;
}
__device__ __forceinline__ int column_of_thread() {
  return static_cast<int>(threadIdx.x) % kWarpgroup % 4 * 2;
}

// The index-th piece of work: heads of a section side by side, their tiles one after the other.
struct TileIndex {
  int batch;
  int head;
  int tile;
};
__device__ __forceinline__ TileIndex tile_at(const TileOrder& order, int index, int heads_per_batch) {
  const int least = order.heads / order.sections;
  const int larger = order.heads - least * order.sections;  // sections of one head more, which come first
  const int larger_tiles = larger * (least + 1) * order.tiles_per_head;
  const bool in_larger = index < larger_tiles;
  const int heads = least + (in_larger ? 1 : 0);
  const int rest = in_larger ? index : index - larger_tiles;
  const int section = rest / (heads * order.tiles_per_head);
  const int in_section = rest - section * heads * order.tiles_per_head;
  const int head = (in_larger ? 0 : larger * (least + 1)) + section * heads + in_section % heads;
  const int batch = head / heads_per_batch;
  return {batch, head - batch * heads_per_batch, in_section / heads};
}

// A head's rows that take part, found once for many loads.
struct HeadPlaces {
  const int* list;  // or null
  int count;        // with it
  int offset;

  __device__ __forceinline__ HeadPlaces(const Places& places, int batch, int query_head)
      : list(places.list(batch, query_head)),
        count(list == nullptr ? 0 : places.count_of(batch, query_head)),
        offset(places.offset(query_head)) {}
};

// Rows of shared memory from places of a head, in tiles of 64 columns. From a list of places row by row, with
// zeros after its end.
template <int kRows, int kColumns, class Element>
__device__ __forceinline__ void load_rows(Element* to, const CUtensorMap& map, std::uint64_t& full,
                                          const HeadPlaces& places, int place, int head, int batch) {
  if (places.list == nullptr) {
#pragma unroll
    for (int column = 0; column < kColumns; column += kTileColumns) {
      ptx::tma_load(to + column * kRows, map, full, column, places.offset, place, head, batch);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRows; ++i) {
    const int row = place + i < places.count ? places.list[place + i] : 0x7FFFFFFF;
    for (int column = 0; column < kColumns; column += kTileColumns) {
      ptx::tma_load(to + column * kRows + i * kTileColumns, map, full, column, 0, row, head, batch);
    }
  }
}

// A group of products, D = A B^T over the head's columns, or with kAdds D += A B^T: 64 of A's kRows rows with
// all rows of B, two for each register of D.
template <class Shape, int kRows, bool kAdds = false, int kCount>
__device__ __forceinline__ void multiply_rows(float (&d)[kCount], const typename Shape::Element* a_rows,
                                              const typename Shape::Element* b_rows) {
  ptx::wgmma_fence();
  const auto a = ptx::MatrixDescriptor::of(a_rows);
  const auto b = ptx::MatrixDescriptor::of(b_rows);
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int tile = k / kTileColumns;
    const int within = k % kTileColumns;
    ptx::wgmma<typename Shape::Element, 2 * kCount, ptx::Major::inner, ptx::Major::inner>(
        d, a + (tile * kTileColumns * kRows + within), b + (tile * kTileColumns * 2 * kCount + within),
        kAdds || k != 0);
  }
  ptx::wgmma_commit();
}

// Likewise D += A B, A in registers, a column for each row of B: all of them, or one of kParts parts.
template <class Shape, int kPart = 0, int kParts = 1, int kPairs>
__device__ __forceinline__ void multiply_columns(float (&d)[Shape::kHeadDim / 2],
                                                 const std::uint32_t (&a)[kPairs],
                                                 const typename Shape::Element* b_rows) {
  constexpr int kRows = 4 * kPairs;
  ptx::wgmma_fence();
  const auto b = ptx::MatrixDescriptor::of(b_rows, kRows * kTileColumns * 2);
#pragma unroll
  for (int k = kPart * kRows / kParts; k < (kPart + 1) * kRows / kParts; k += 16) {
    ptx::wgmma<typename Shape::Element, Shape::kHeadDim, ptx::Major::outer>(d, a + k / 4,
                                                                            b + k * kTileColumns, true);
  }
  ptx::wgmma_commit();
}

// tanh of scores in units of the softcap.
template <int kScores>
__device__ __forceinline__ void cap_scores(float (&scores)[kScores], float scale, float softcap) {
  const float inner = 2 * kLog2E * scale / softcap;
#pragma unroll
  for (float& score : scores) score = 1 - __fdividef(2, 1 + ptx::exp2_approximate(score * inner));
}

// Scores of a thread's row r of two: only the columns whose bits are set stay. Bits become predicates seven
// at a time, so this is one instruction a score; comparing each with the ends of an interval takes three.
template <int kScores>
__device__ __forceinline__ void keep_columns(float (&scores)[kScores], int r, std::uint32_t kept) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    if ((kept >> i & 1) == 0) scores[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
  }
}

// Those of an interval stay, of a tile's columns from `tile_begin` on.
template <int kScores>
__device__ __forceinline__ void keep_seen(float (&scores)[kScores], int r, const Range& seen, int tile_begin,
                                          int first_column) {
  const int first = tile_begin + first_column;
  const auto inside = [&](int column) { return min(max(column - first, 0), 2 * kScores); };
  keep_columns(scores, r, held_columns(inside(seen.begin), inside(seen.end), 0));
}

// Those that a row lists stay. How long it took to find them may differ between threads.
template <int kScores>
__device__ __forceinline__ void keep_listed(float (&scores)[kScores], int r, std::uint32_t listed) {
  __syncwarp();
  keep_columns(scores, r, listed);
}

// Two neighbours in a register, as products read them.
template <class Element, int kPairs>
__device__ __forceinline__ void pack_pairs(std::uint32_t (&pairs)[kPairs],
                                           const float (&values)[2 * kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) pairs[i] = ptx::pack<Element>(values[2 * i], values[2 * i + 1]);
}

// Transposes 4 x 4 registers across the four threads that share a row: each gets 16 bytes side by side.
__device__ __forceinline__ uint4 gather_quad(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                             std::uint32_t d) {
  const int lane = threadIdx.x % 4;
  const bool odd = (lane & 1) != 0;
  const bool high = (lane & 2) != 0;
  const std::uint32_t ab = __shfl_xor_sync(0xFFFFFFFF, odd ? a : b, 1);
  const std::uint32_t cd = __shfl_xor_sync(0xFFFFFFFF, odd ? c : d, 1);
  const std::uint32_t a1 =
      odd ? ab : a;  // even lanes: block a (or c), lanes 0 and 1 of a pair; odd lanes: block b (or d)
  const std::uint32_t b1 = odd ? b : ab;
  const std::uint32_t c1 = odd ? cd : c;
  const std::uint32_t d1 = odd ? d : cd;
  const std::uint32_t x = __shfl_xor_sync(0xFFFFFFFF, high ? a1 : c1, 2);
  const std::uint32_t y = __shfl_xor_sync(0xFFFFFFFF, high ? b1 : d1, 2);
  return high ? make_uint4(x, y, c1, d1) : make_uint4(a1, b1, x, y);
}

// A warp's 16 rows of f32 sums, as 16-bit rows in global memory.
template <class Element, int kHeadDim>
__device__ __forceinline__ void store_rows(const float (&sums)[kHeadDim / 2], const float (&factor)[2],
                                           Element* const (&row)[2], int head_dim) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; block += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* at = sums + (block + i) * 4 + 2 * r;
        pairs[i] = ptx::pack<Element>(at[0] * factor[r], at[1] * factor[r]);
      }
      const uint4 piece = gather_quad(pairs[0], pairs[1], pairs[2], pairs[3]);
      const int column = (block + lane) * 8;
      if (row[r] != nullptr && column < head_dim) *reinterpret_cast<uint4*>(row[r] + column) = piece;
    }
  }
}

// Where a thread's sums i and i + 1 lie in a row.
__device__ __forceinline__ int column_of_sums(int i) {
  return i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
}

// A warp's 16 rows added to f32 rows in global memory. The memory adds: nobody waits for it.
template <int kColumns>
__device__ __forceinline__ void add_wide_rows(const float (&sums)[kColumns / 2], const float (&factor)[2],
                                              float* const (&row)[2], int head_dim) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += 2) {
    const int r = i % 4 / 2;
    if (row[r] == nullptr || column_of_sums(i) >= head_dim) continue;
    ptx::add_two(row[r] + column_of_sums(i), sums[i] * factor[r], sums[i + 1] * factor[r]);
  }
}

// As f32 rows in global memory, plus `keep` times what is there; with 0 that is not read. Reads are issued
// many at a time: each would otherwise wait for the store before it.
template <int kColumns>
__device__ __forceinline__ void store_wide_rows(const float (&sums)[kColumns / 2], const float (&factor)[2],
                                                float* const (&row)[2], const float (&keep)[2],
                                                int head_dim) {
  constexpr int kAtATime = 32;  // registers
#pragma unroll
  for (int first = 0; first < kColumns / 2; first += kAtATime) {
    float2 before[kAtATime / 2];
#pragma unroll
    for (int i = first; i < first + kAtATime && i < kColumns / 2; i += 2) {
      const int r = i % 4 / 2;
      const bool reads = row[r] != nullptr && column_of_sums(i) < head_dim && keep[r] > 0;
      before[(i - first) / 2] =
          reads ? *reinterpret_cast<const float2*>(row[r] + column_of_sums(i)) : make_float2(0, 0);
    }
#pragma unroll
    for (int i = first; i < first + kAtATime && i < kColumns / 2; i += 2) {
      const int r = i % 4 / 2;
      if (row[r] == nullptr || column_of_sums(i) >= head_dim) continue;
      const float2 kept = before[(i - first) / 2];
      *reinterpret_cast<float2*>(row[r] + column_of_sums(i)) = make_float2(
          fmaf(sums[i], factor[r], keep[r] * kept.x), fmaf(sums[i + 1], factor[r], keep[r] * kept.y));
    }
  }
}

// How a thread's two rows end: where they go, and what their sums are multiplied by.
struct RowEnds {
  int row[2];  // of a head; -1: nowhere
  float factor[2];
  float keep_before[2];  // of what they resume from

  // Of a tile that has `count` places, the first of them place `first` of its head.
  __device__ __forceinline__ static RowEnds of(const Places& places, int batch, int query_head, int first,
                                               int count, int row_in_block, float factor) {
    RowEnds ends{.factor = {factor, factor}, .keep_before = {0, 0}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = row_in_block + 8 * r;
      ends.row[r] = place < count ? places.row(batch, query_head, first + place) : -1;
    }
    return ends;
  }
};

// Where two rows of a head lie; null for -1.
template <class Stored>
__device__ __forceinline__ void point_to_rows(Stored* (&to)[2], const HeadsView& rows, int batch, int head,
                                              const int (&row)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) to[r] = row[r] < 0 ? nullptr : rows.template row<Stored>(batch, head, row[r]);
}

// A thread's two rows of an output or a gradient.
template <class Element, int kColumns>
__device__ __forceinline__ void write_rows(const HeadsView& rows, Write write, int batch, int head,
                                           const RowEnds& ends, const float (&sums)[kColumns / 2],
                                           int head_dim) {
  if (write != Write::rounded) {
    float* to[2];
    point_to_rows(to, rows, batch, head, ends.row);
    if (write == Write::added) {
      add_wide_rows<kColumns>(sums, ends.factor, to, head_dim);
    } else {
      store_wide_rows<kColumns>(sums, ends.factor, to, ends.keep_before, head_dim);
    }
  } else {
    Element* to[2];
    point_to_rows(to, rows, batch, head, ends.row);
    store_rows<Element, kColumns>(sums, ends.factor, to, head_dim);
  }
}

}  // namespace headroom::cuda::sm90
