// f32 products on Hopper's tensor cores. Every f32 is the sum of three bf16, x = x0 + x1 + x2, and a product
// is taken as six: a0 b0 + a0 b1 + a1 b0 + a1 b1 + a0 b2 + a2 b0; what is left out is at most 2^-24 of it.
// bf16 has the exponents of f32, so that nothing has to be scaled, and tensor cores read it along either
// dimension, which they do not do for tf32. They round sums towards zero, which drifts: the products of 64
// inner elements start from zero and are added to the sum by the FMA units, which round to nearest.
#pragma once

#include "attention/cuda/intervals/tiles-inl.h"
#include "cuda/frame.h"

namespace headroom::cuda {

inline constexpr int kPanel = 64;  // columns of bf16 in a 128-byte row of shared memory
inline constexpr int kSplitParts = 3;
inline constexpr int kSplitTerms = 6;
inline constexpr int kHopperSharedBytes = 227 << 10;  // of a block

// Of a term, which part of the left operand and which of the right; the smallest first.
__device__ constexpr int left_part(int term) {
  constexpr int kPart[kSplitTerms] = {2, 0, 1, 1, 0, 0};
  return kPart[term];
}
__device__ constexpr int right_part(int term) {
  constexpr int kPart[kSplitTerms] = {0, 2, 1, 0, 1, 0};
  return kPart[term];
}

// Rows of D columns in three parts, each in panels of 64 columns, swizzled as wgmma reads them.
template <int kRows, int D>
struct alignas(1024) SplitTile {
  static constexpr int kPanels = D / kPanel;
  static_assert(D % kPanel == 0);
  std::uint16_t element[kSplitParts][kPanels][kRows * kPanel];
};

// pairs[part] <- that part of two neighbours
__device__ __forceinline__ void split_pair(std::uint32_t (&pairs)[kSplitParts], float x, float y) {
#pragma unroll
  for (int part = 0; part < kSplitParts; ++part) {
    pairs[part] = ptx::pack<__nv_bfloat16>(x, y);
    const float2 taken = ptx::unpack<__nv_bfloat16>(pairs[part]);
    x -= taken.x;
    y -= taken.y;
  }
}

// A warpgroup's 64 x 64 values, as the left operand of four steps.
struct SplitRegisters {
  std::uint32_t pairs[kSplitParts][16];

  __device__ __forceinline__ explicit SplitRegisters(const float (&values)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      std::uint32_t parts[kSplitParts];
      split_pair(parts, values[2 * i], values[2 * i + 1]);
#pragma unroll
      for (int part = 0; part < kSplitParts; ++part) pairs[part][i] = parts[part];
    }
  }
};

// ---- tiles from global memory

// Where a thread reads of 64 rows of a list: of every sixteen one, from its eight columns of a panel on.
struct ThreadSource {
  const float* row[4];  // null past the end
  bool aligned;

  __device__ static ThreadSource of(const TypedHeadsView& view, std::int64_t b, std::int64_t head,
                                    const std::int32_t* list, Range rows, int thread) {
    const float* data = static_cast<const float*>(view.data) + b * view.batch_stride +
                        head * view.head_stride + thread % 8 * 8;
    ThreadSource share;
    share.aligned = view.aligned;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::int32_t i = rows.begin + n * 16 + thread / 8;
      share.row[n] = i < rows.end ? data + (list == nullptr ? i : list[i]) * view.row_stride : nullptr;
    }
    return share;
  }
};

// A thread's eight columns of a row, on the way.
struct RowPiece {
  float4 four[2];

  // The row has `columns` columns from the thread's first one on.
  __device__ __forceinline__ void fetch(const ThreadSource& from, int n, int panel, int columns) {
    four[0] = four[1] = make_float4(0, 0, 0, 0);
    if (from.row[n] == nullptr || panel * kPanel >= columns) return;
    const float* at = from.row[n] + panel * kPanel;
    four[0] = load_four(at, DType::f32, 0, from.aligned);
    four[1] = load_four(at, DType::f32, 4, from.aligned);
  }
  // `at`: of an element of the tile's first part.
  template <int kRows, int D>
  __device__ __forceinline__ void store(SplitTile<kRows, D>& tile, int at) const {
    const float values[8] = {four[0].x, four[0].y, four[0].z, four[0].w,
                             four[1].x, four[1].y, four[1].z, four[1].w};
    std::uint32_t pairs[4][kSplitParts];
#pragma unroll
    for (int i = 0; i < 4; ++i) split_pair(pairs[i], values[2 * i], values[2 * i + 1]);
#pragma unroll
    for (int part = 0; part < kSplitParts; ++part) {
      *reinterpret_cast<uint4*>(tile.element[part][0] + at) =
          make_uint4(pairs[0][part], pairs[1][part], pairs[2][part], pairs[3][part]);
    }
  }
};

// A thread's share of 64 rows of a panel.
struct PanelShare {
  RowPiece piece[4];

  __device__ __forceinline__ void fetch(const ThreadSource& from, int panel, int columns) {
#pragma unroll
    for (int n = 0; n < 4; ++n) piece[n].fetch(from, n, panel, columns);
  }
  // Into a tile, where the 64 rows begin at `row`; after(n) when piece n is free again.
  template <int kRows, int D, class After>
  __device__ __forceinline__ void store(SplitTile<kRows, D>& tile, int row, int panel, int thread,
                                        const After& after) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int r = row + n * 16 + thread / 8;
      piece[n].store(tile, (panel * kRows + r) * kPanel + (thread % 8 ^ (r & 7)) * 8);
      after(n);
    }
  }
};

// 64 rows of a tile from `row` on <- rows of a list, by a warpgroup
template <int kRows, int D>
__device__ __forceinline__ void fill_split(SplitTile<kRows, D>& tile, int row, const ThreadSource& from,
                                           int columns, int thread) {
#pragma unroll 1
  for (int panel = 0; panel < D / kPanel; ++panel) {
    PanelShare share;
    share.fetch(from, panel, columns);
    share.store(tile, row, panel, thread, [](int) {});
  }
  ptx::async_proxy_fence();
}

// ---- products of a warpgroup

// sums <- A B^T over the 64 columns of a panel: 64 rows of A from `row` on, 64 of B
template <int kRows, int D>
__device__ __forceinline__ void multiply_panel(float (&sums)[32], const SplitTile<kRows, D>& a, int row,
                                               const SplitTile<64, D>& b, int panel) {
#pragma unroll
  for (int term = 0; term < kSplitTerms; ++term) {
#pragma unroll
    for (int k = 0; k < kPanel; k += 16) {
      ptx::wgmma<__nv_bfloat16, 64, ptx::Major::inner, ptx::Major::inner>(
          sums, ptx::MatrixDescriptor::of(a.element[left_part(term)][panel] + row * kPanel) + k,
          ptx::MatrixDescriptor::of(b.element[right_part(term)][panel]) + k, term + k > 0);
    }
  }
}

// scores <- A B^T of 64 rows by 64
template <int kRows, int D>
__device__ __forceinline__ void multiply_scores(float (&scores)[32], const SplitTile<kRows, D>& a, int row,
                                                const SplitTile<64, D>& b) {
  constexpr int kPanels = D / kPanel;
  float sums[kPanels][32];
  ptx::wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) multiply_panel(sums[panel], a, row, b, panel);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) ptx::wgmma_pin(sums[panel]);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    scores[i] = sums[0][i];
#pragma unroll
    for (int panel = 1; panel < kPanels; ++panel) scores[i] += sums[panel][i];
  }
}

// sums <- A B over 64 rows of B, for N columns from a panel on
template <int N, int D>
__device__ __forceinline__ void multiply_rows(float (&sums)[N / 2], const SplitRegisters& a,
                                              const SplitTile<64, D>& b, int panel) {
#pragma unroll
  for (int term = 0; term < kSplitTerms; ++term) {
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      ptx::wgmma<__nv_bfloat16, N, ptx::Major::outer>(
          sums, a.pairs[left_part(term)] + k / 4,
          ptx::MatrixDescriptor::of(b.element[right_part(term)][panel], 64 * kPanel * 2) + k * kPanel,
          term + k > 0);
    }
  }
}

// sums <- A^T B over 64 rows of both, for the columns of a panel
template <int D>
__device__ __forceinline__ void multiply_transposed(float (&sums)[32],
                                                    const std::uint16_t (&a)[kSplitParts][64 * kPanel],
                                                    const SplitTile<64, D>& b, int panel) {
#pragma unroll
  for (int term = 0; term < kSplitTerms; ++term) {
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      ptx::wgmma<__nv_bfloat16, 64, ptx::Major::outer, ptx::Major::outer>(
          sums, ptx::MatrixDescriptor::of(a[left_part(term)]) + k * kPanel,
          ptx::MatrixDescriptor::of(b.element[right_part(term)][panel]) + k * kPanel, term + k > 0);
    }
  }
}

}  // namespace headroom::cuda
