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
template <class Vec, DType kType>
void pack_lines(const Matrix& src, std::int64_t lines, int valid, int width, float* dst) {
  for (std::int64_t i = 0; i < lines; ++i) {
    const auto* from = at<kType>(src, i, 0);
    for (int j = 0; j < width; j += Vec::kLanes) {
      const Vec x = j < valid ? load_elements<Vec, kType>(from + j, valid - j) : Vec::zero();
      x.store(dst + i * width + j);
    }
  }
}

template <class Vec>
void pack_panel(const Matrix& src, std::int64_t depth, int columns, float* dst) {
  if (src.column_stride == 1) {
    with_dtype<Vec>(src.dtype,
                    [&]<DType kType>() { pack_lines<Vec, kType>(src, depth, columns, kPanel<Vec>, dst); });
    return;
  }
  // Columns are rows in memory: what pack_transposed is for.
  pack_transposed<Vec>({.data = src.data, .stride = src.column_stride, .dtype = src.dtype}, columns,
                       static_cast<int>(depth), dst);
}

// A block of the left operand, as f32: [kTileM][kStepK] where its rows are contiguous, [kStepK][kTileM] where
// its columns are. Rows past the last are zeros.
struct LeftBlock {
  const float* data;
  std::int64_t row;   // from one row of the operand to the next
  std::int64_t step;  // from one step in depth to the next
};

template <class Vec>
LeftBlock pack_left(const MatmulItem& item, std::int64_t begin, int depth, float* dst) {
  Matrix left = item.left;
  const bool rows_contiguous = left.column_stride == 1;
  with_dtype<Vec>(left.dtype, [&]<DType kType>() {
    left.data = at<kType>(left, 0, begin);
    if (rows_contiguous) {
      pack_lines<Vec, kType>(left, item.rows, depth, kStepK, dst);
      const std::int64_t done = std::int64_t{item.rows} * kStepK;
      const std::int64_t strips_end = std::int64_t{(item.rows + kStrip - 1) / kStrip} * kStrip * kStepK;
      for (std::int64_t i = done; i < strips_end; i += Vec::kLanes) Vec::zero().store(dst + i);
    } else {
      const Matrix transposed{
          .data = left.data, .row_stride = left.column_stride, .column_stride = 1, .dtype = left.dtype};
      pack_lines<Vec, kType>(transposed, depth, item.rows, kTileM, dst);
    }
  });
  return rows_contiguous ? LeftBlock{dst, kStepK, 1} : LeftBlock{dst, 1, kTileM};
}

// Between the result and its sums [columns / panel][kTileM][panel]: body(place in the result, its sums, how
// many elements).
template <class Vec, class Body>
[[gnu::always_inline]] inline void for_each_vector(const MatmulItem& item, float* sums, const Body& body) {
  with_dtype<Vec>(item.result.dtype, [&]<DType kType>() {
    for (int row = 0; row < item.rows; ++row) {
      for (int column = 0; column < item.columns; column += Vec::kLanes) {
        const std::int64_t panel = column / kPanel<Vec>;
        float* sum = sums + (panel * kTileM + row) * kPanel<Vec> + column % kPanel<Vec>;
        body.template operator()<kType>(at<kType>(item.result, row, column), sum, item.columns - column);
      }
    }
  });
}

// The sums go on from what the result holds, so that a depth cut into several products gives the same bits as
// one product.
template <class Vec>
void start_sums(const MatmulItem& item, float* sums) {
  for_each_vector<Vec>(item, sums, []<DType kType>(const auto* place, float* sum, int valid) {
    load_elements<Vec, kType>(place, valid).store(sum);
  });
}

template <class Vec>
void store_sums(const MatmulItem& item, float* sums) {
  for_each_vector<Vec>(item, sums, []<DType kType>(auto* place, const float* sum, int valid) {
    store_elements<Vec, kType>(Vec::load(sum), place, valid);
  });
}

template <class Vec>
void multiply(const MatmulItem& item) {
  constexpr std::int64_t kWidth = kPanel<Vec>;
  constexpr int kTileStrips = kTileM / kStrip;
  float* sums = item.scratch;
  float* block = item.scratch + std::int64_t{kTileM} * kGroupColumns;
  const int panels = (item.columns + kPanel<Vec> - 1) / kPanel<Vec>;
  const int strips = (item.rows + kStrip - 1) / kStrip;
  if (item.add) {
    start_sums<Vec>(item, sums);
  } else if (item.depth == 0) {
    for (std::int64_t i = 0; i < std::int64_t{panels} * kTileM * kWidth; i += Vec::kLanes)
      Vec::zero().store(sums + i);
  }
  for (std::int64_t begin = 0; begin < item.depth; begin += kStepK) {
    const int depth = static_cast<int>(lesser<std::int64_t>(kStepK, item.depth - begin));
    const LeftBlock left = pack_left<Vec>(item, begin, depth, block);
    for (int panel = 0; panel < panels; ++panel) {
      const float* right = item.right + (panel * item.depth + begin) * kWidth;
      // The next panel of this depth, or the first of the next, comes in during these products.
      const float* next =
          panel + 1 < panels ? right + item.depth * kWidth : item.right + (begin + depth) * kWidth;
      for (int strip = 0; strip < strips; ++strip) {
        float* sum = sums + (std::int64_t{panel} * kTileM + std::int64_t{strip} * kStrip) * kWidth;
        Accumulators<Vec, Vec::kColumns> c;
        begin == 0 && !item.add ? c.clear() : c.load(sum, kWidth);
        auto ahead = ahead_piece<Vec, kTileStrips>(next, kStepK * kWidth, strip, kStepK);
        // C <- C + A B
        c.multiply_add(left.data + std::int64_t{strip} * kStrip * left.row, left.row, left.step, right, depth,
                       ahead);
        c.store(sum, kWidth);
      }
    }
  }
  store_sums<Vec>(item, sums);
}

template <class Vec>
constexpr MatmulKernels make_matmul_kernels() {
  return {.panel = kPanel<Vec>, .pack_panel = pack_panel<Vec>, .multiply = multiply<Vec>};
}

}  // namespace headroom::cpu
