// The product kernels of one instruction set. A work item is a tile of kTileM rows of C and a group of column
// panels; the right operand has been packed into panels, the left one is packed here, kStepK deep at a time.
//
// The order of loops keeps a panel's kStepK rows in L1 (32 KiB with AVX-512) while all strips of the tile use
// them, and sums and left block in L2; a panel is fetched once per 16 strips, from wherever it is.
#pragma once

#include <cstdint>

#include "cpu/packed.h"
#include "headroom/core/device.h"

namespace headroom::cpu {

inline constexpr int kTileM = 96;           // rows of C in an item: 16 strips share a panel
inline constexpr int kStepK = 128;          // depth of one step
inline constexpr int kGroupColumns = 1024;  // columns of C in an item: sums of 384 KiB

// Element (i, j) at data[i * row_stride + j * column_stride]; one of the strides is 1.
struct Matrix {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  DType dtype = DType::f32;
};

struct MatmulItem {
  Matrix left;         // [rows, depth], from the item's first row
  const float* right;  // [columns / panel][depth][panel]
  Matrix before;       // [rows, columns], what the sums begin with; no data: with zeros
  Matrix result;       // [rows, columns]; this and the one before have unit stride along the columns
  int rows;            // 1 to kTileM
  int columns;         // 1 to kGroupColumns
  std::int64_t depth;
  float* scratch;  // kMatmulScratch floats
};
inline constexpr std::int64_t kMatmulScratch = std::int64_t{kTileM} * (kGroupColumns + kStepK);

struct MatmulKernels {
  // A panel is as wide as a register tile.
  // depth x columns of src into one panel, filled up with zeros; columns <= panel.
  void (*pack_panel)(const Matrix& src, std::int64_t depth, int columns, float* dst);
  void (*multiply)(const MatmulItem& item);
};

[[nodiscard]] const MatmulKernels& matmul_kernels_portable();
[[nodiscard]] const MatmulKernels& matmul_kernels_avx2();
[[nodiscard]] const MatmulKernels& matmul_kernels_avx512();

// Those of a level; the description of a CPU says which it has.
[[nodiscard]] const MatmulKernels& matmul_kernels(SimdLevel level);

}  // namespace headroom::cpu
