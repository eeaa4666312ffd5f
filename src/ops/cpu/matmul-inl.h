// The product kernels for any vector type.
#pragma once

#include "cpu/micro-inl.h"
#include "ops/cpu/matmul_kernels.h"

namespace headroom::cpu {

// Element pointer of a matrix in its stored type.
template <DType kType>
[[gnu::always_inline]] inline typename Element<kType>::Stored* at(const Matrix& matrix, std::int64_t row,
                                                                  std::int64_t column) {
  return static_cast<typename Element<kType>::Stored*>(matrix.data) + row * matrix.row_stride +
         column * matrix.column_stride;
}

// dst[i * width + j] <- src(i, j), zeros where j is past `valid`; unit stride along j.
template <class Vec>
void pack_lines(const Matrix& src, std::int64_t lines, int valid, int width, float* dst) {
  with_dtype<Vec>(src.dtype, [&]<DType kType>() {
    for (std::int64_t i = 0; i < lines; ++i) {
      const auto* from = at<kType>(src, i, 0);
      const auto* soon = at<kType>(src, lesser(i + kRowsAhead, lines - 1), 0);
      for (int j = 0; j < width; j += Vec::kLanes) {
        __builtin_prefetch(soon + j);
        const Vec x = j < valid ? load_elements<Vec, kType>(from + j, valid - j) : Vec::zero();
        x.store(dst + i * width + j);
      }
    }
  });
}

template <class Vec>
void pack_panel(const Matrix& src, std::int64_t depth, int columns, float* dst) {
  if (src.column_stride == 1) {
    pack_lines<Vec>(src, depth, columns, kPanel<Vec>, dst);
  } else {  // columns are rows in memory
    pack_transposed<Vec>({.data = src.data, .stride = src.column_stride, .dtype = src.dtype}, columns,
                         static_cast<int>(depth), dst);
  }
}

// A block of the left operand as f32, [kTileM][kStepK], however the operand lies in memory. Rows past the
// last are unspecified: their sums are not stored.
template <class Vec>
void pack_left(const MatmulItem& item, std::int64_t begin, int depth, float* dst) {
  Matrix left = item.left;
  left.data = static_cast<std::byte*>(left.data) + begin * left.column_stride * size_bytes(left.dtype);
  if (left.column_stride == 1) {
    pack_lines<Vec>(left, item.rows, depth, kStepK, dst);
  } else {  // steps in depth are rows in memory
    pack_transposed<Vec, kStepK>({.data = left.data, .stride = left.column_stride, .dtype = left.dtype},
                                 depth, item.rows, dst);
  }
}

// A register tile of C: its sums, [kStrip][panel], and where it lies in the item.
template <class Vec>
struct ResultTile {
  const MatmulItem& item;
  int row;
  int column;
  float* sums;

  // body(place in the matrix, its sums, how many elements) for every vector
  template <class Body>
  [[gnu::always_inline]] void for_each_vector(const Matrix& matrix, const Body& body) const {
    const int rows = lesser(kStrip, item.rows - row);
    const int columns = lesser(kPanel<Vec>, item.columns - column);
    with_dtype<Vec>(matrix.dtype, [&]<DType kType>() {
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; j += Vec::kLanes) {
          body.template operator()<kType>(at<kType>(matrix, row + i, column + j), sums + i * kPanel<Vec> + j,
                                          columns - j);
        }
      }
    });
  }

  // The sums go on from what is there, so that a depth cut into several products with f32 between them gives
  // the same bits as one product.
  void start() const {
    for_each_vector(item.before, []<DType kType>(const auto* place, float* sum, int valid) {
      load_elements<Vec, kType>(place, valid).store(sum);
    });
  }
  void finish() const {
    for_each_vector(item.result, []<DType kType>(auto* place, const float* sum, int valid) {
      store_elements<Vec, kType>(Vec::load(sum), place, valid);
    });
  }
};

template <class Vec>
void multiply(const MatmulItem& item) {
  constexpr std::int64_t kWidth = kPanel<Vec>;
  constexpr int kTileStrips = kTileM / kStrip;
  float* sums = item.scratch;  // [columns / panel][kTileM][panel]
  float* left = item.scratch + std::int64_t{kTileM} * kGroupColumns;
  const int panels = (item.columns + kPanel<Vec> - 1) / kPanel<Vec>;
  const int strips = (item.rows + kStrip - 1) / kStrip;
  const bool from_zero = item.before.data == nullptr;
  std::int64_t begin = 0;
  do {
    const int depth = static_cast<int>(lesser<std::int64_t>(kStepK, item.depth - begin));
    const bool last = begin + depth == item.depth;
    pack_left<Vec>(item, begin, depth, left);
    for (int panel = 0; panel < panels; ++panel) {
      const float* right = item.right + (panel * item.depth + begin) * kWidth;
      // The next panel of this depth, or the first of the next, comes in during these products.
      const float* next =
          panel + 1 < panels ? right + item.depth * kWidth : item.right + (begin + depth) * kWidth;
      for (int strip = 0; strip < strips; ++strip) {
        float* sum = sums + (std::int64_t{panel} * kTileM + std::int64_t{strip} * kStrip) * kWidth;
        const ResultTile<Vec> tile{item, strip * kStrip, panel * kPanel<Vec>, sum};
        if (begin == 0 && !from_zero) tile.start();
        Accumulators<Vec, Vec::kColumns> c;
        begin == 0 && from_zero ? c.clear() : c.load(sum, kWidth);
        auto ahead = ahead_piece<Vec, kTileStrips>(next, kStepK * kWidth, strip, kStepK);
        // C <- C + A B
        c.multiply_add(left + std::int64_t{strip} * kStrip * kStepK, kStepK, 1, right, depth, ahead);
        c.store(sum, kWidth);
        if (last) tile.finish();
      }
    }
    begin += depth;
  } while (begin < item.depth);
}

template <class Vec>
constexpr MatmulKernels make_matmul_kernels() {
  return {.pack_panel = pack_panel<Vec>, .multiply = multiply<Vec>};
}

}  // namespace headroom::cpu
