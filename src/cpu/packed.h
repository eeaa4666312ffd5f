// Operands of the register-tile products, packed as f32 whatever the tensor holds:
//   rows        [tiles][columns][tile rows][width]  a tile's rows cut into column panels, so that one panel
//               of one tile is contiguous and stays in L1 whatever the row stride of the tensor was
//   transposed  [panels][elements][panel]           `panel` rows side by side
#pragma once

#include <cstdint>

#include "cpu/levels.h"
#include "headroom/core/dtype.h"

namespace headroom::cpu {

// Rows of the register tile in every instruction set: 6 x 4 vectors fill AVX-512's 32 registers, 6 x 2
// fill 16.
inline constexpr int kStrip = 6;

// Rows of a tensor with unit stride inside a row: neighbours, or those that a list names.
struct RowsView {
  void* data = nullptr;
  std::int64_t stride = 0;  // between rows, in elements
  DType dtype = DType::f32;
  const std::int32_t* list = nullptr;  // row i is row list[i] of data; null: row i

  [[nodiscard, gnu::always_inline]] std::int64_t index(int row) const {
    return list == nullptr ? row : list[row];
  }
  [[nodiscard, gnu::always_inline]] std::int64_t offset(int row) const { return index(row) * stride; }
};

// How the elements of a row are cut into column panels: `count` panels of `width` floats, the last one padded
// with zeros.
struct Columns {
  int width = 0;
  int count = 0;

  // Of whole vectors, at most a register tile's to a panel.
  [[nodiscard, gnu::always_inline]] static constexpr Columns of(int elements, VectorShape vectors) {
    const int needed = (elements + vectors.lanes - 1) / vectors.lanes;
    const int count = (needed + vectors.columns - 1) / vectors.columns;
    return {.width = (needed + count - 1) / count * vectors.lanes, .count = count};
  }
  [[nodiscard, gnu::always_inline]] constexpr std::int64_t padded() const {
    return std::int64_t{width} * count;
  }
};

}  // namespace headroom::cpu
