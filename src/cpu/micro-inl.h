// What kernels are made of: the register-tile product, packing, tanh. Templates over the vector type of one
// instruction set (vector_*.h), instantiated only in sources compiled for it, so the linker cannot lend an
// instance to another machine; for the same reason nothing from std is used here.
#pragma once

#include "cpu/packed.h"

namespace headroom::cpu {

template <class Vec>
inline constexpr int kPanel = Vec::kColumns * Vec::kLanes;

template <class Vec>
[[gnu::always_inline]] constexpr Columns columns_of(int elements) {
  return Columns::of(elements, {Vec::kLanes, Vec::kColumns});
}

template <class T>
[[gnu::always_inline]] constexpr T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
[[gnu::always_inline]] constexpr T greater(T a, T b) {
  return a < b ? b : a;
}

// Memory that will be needed soon, asked for from inside the products, a little at every step: key blocks and
// query tiles of a long sequence come from L3 and beyond, the hardware's prefetcher stops at every page, and
// a burst of prefetches would block the line buffers. (Forward, 8064 keys: 72 % of peak without, 85 % in
// bursts, 92 % so.)
template <class Vec>
struct AheadOf {
  const float* next;
  std::int64_t floats;  // from one prefetch to the next

  [[gnu::always_inline]] void prefetch() {
    __builtin_prefetch(next, 0, 2);
    next += floats;
  }
};

// Piece `piece` of `pieces` equal ones of `floats` floats, to be asked for during a product of `steps` steps.
template <class Vec, int kPieces>
[[gnu::always_inline]] inline AheadOf<Vec> ahead_piece(const float* base, std::int64_t floats, int piece,
                                                       int steps) {
  const std::int64_t share = floats / kPieces;
  return {base + piece * share, share / steps};
}

// A strip's worth of accumulators: kStrip rows of N vectors.
template <class Vec, int N>
struct Accumulators {
  using Ahead = AheadOf<Vec>;
  Vec c[kStrip][N];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) c[r][n] = Vec::zero();
    }
  }
  [[gnu::always_inline]] void load(const float* p, std::int64_t stride) {
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) c[r][n] = Vec::load(p + r * stride + n * Vec::kLanes);
    }
  }
  [[gnu::always_inline]] void store(float* p, std::int64_t stride) const {
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) c[r][n].store(p + r * stride + n * Vec::kLanes);
    }
  }

  // c <- c + A B. Row r of step k of A is a[r * row + k * step]; row k of B starts at b + k * N * kLanes.
  [[gnu::always_inline]] void multiply_add(const float* a, std::int64_t row, std::int64_t step,
                                           const float* b, std::int64_t count, Ahead& ahead) {
    for (std::int64_t k = 0; k < count; ++k) {
      ahead.prefetch();
      multiply_add(a + k * step, row, b + k * N * Vec::kLanes);
    }
  }

 private:
  [[gnu::always_inline]] void multiply_add(const float* a, std::int64_t row, const float* b) {
    Vec right[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) right[n] = Vec::load(b + n * Vec::kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
      const Vec left = Vec::all(a[r * row]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) c[r][n] = fma(left, right[n], c[r][n]);
    }
  }
};

// S <- A B over head_dim: A is a strip of a packed rows tile whose columns are N vectors wide, B one
// transposed panel.
template <class Vec, int N>
[[gnu::always_inline]] inline void strip_times_panel(Accumulators<Vec, Vec::kColumns>& s, const float* strip,
                                                     int tile_rows, const float* panel, int head_dim,
                                                     AheadOf<Vec> ahead) {
  constexpr std::int64_t kWidth = N * Vec::kLanes;
  s.clear();
  for (int column = 0; column < head_dim; column += kWidth) {
    s.multiply_add(strip, kWidth, 1, panel, lesser<std::int64_t>(kWidth, head_dim - column), ahead);
    strip += tile_rows * kWidth;
    panel += kWidth * kPanel<Vec>;
  }
}

// C <- C + A B for one strip of C, N vectors wide.
template <class Vec, int N>
[[gnu::always_inline]] inline void accumulate(float* c, const float* a, std::int64_t row, std::int64_t step,
                                              const float* b, std::int64_t count, AheadOf<Vec> ahead) {
  constexpr int kWidth = N * Vec::kLanes;
  Accumulators<Vec, N> sums;
  sums.load(c, kWidth);
  sums.multiply_add(a, row, step, b, count, ahead);
  sums.store(c, kWidth);
}

// tanh: near zero the odd polynomial of Cephes, because 1 - 2 / (e^2x + 1) cancels there.
template <class Vec>
Vec tanh(Vec x) {
  const Vec size = magnitude(x);
  const Vec square = x * x;
  Vec p = Vec::all(-5.70498872745e-3f);
  p = fma(p, square, Vec::all(2.06390887954e-2f));
  p = fma(p, square, Vec::all(-5.37397155531e-2f));
  p = fma(p, square, Vec::all(1.33314422036e-1f));
  p = fma(p, square, Vec::all(-3.33332819422e-1f));
  const Vec near = fma(p * square, x, x);
  // Past 20 tanh is 1 in f32, and e^2x would overflow; NaN keeps its way through the polynomial.
  const Vec bounded = where_below(size, Vec::all(20.0f), size, Vec::all(20.0f));
  const Vec growth = exp2(bounded * Vec::all(2.88539008f));
  const Vec far = with_sign(Vec::all(1.0f) - Vec::all(2.0f) / (growth + Vec::all(1.0f)), x);
  return where_below(Vec::all(0.625f), size, far, near);
}

// Elements in memory, one type per dtype: f32 as float, the two 16-bit formats as words.
template <DType kType>
struct Element {
  using Stored = std::uint16_t;
};
template <>
struct Element<DType::f32> {
  using Stored = float;
};

// The `valid` first elements at p, widened; zeros behind them.
template <class Vec, DType kType>
[[gnu::always_inline]] inline Vec load_elements(const typename Element<kType>::Stored* p, int valid) {
  typename Element<kType>::Stored part[Vec::kLanes] = {};
  if (valid < Vec::kLanes) [[unlikely]] {
    for (int i = 0; i < valid; ++i) part[i] = p[i];
    p = part;
  }
  if constexpr (kType == DType::f32) {
    return Vec::load(p);
  } else {
    return kType == DType::bf16 ? Vec::load_bf16(p) : Vec::load_f16(p);
  }
}

template <class Vec, DType kType>
[[gnu::always_inline]] inline void store_elements(Vec x, typename Element<kType>::Stored* p, int valid) {
  typename Element<kType>::Stored part[Vec::kLanes];
  typename Element<kType>::Stored* to = valid < Vec::kLanes ? part : p;
  if constexpr (kType == DType::f32) {
    x.store(to);
  } else {
    kType == DType::bf16 ? x.store_bf16(to) : x.store_f16(to);
  }
  if (valid < Vec::kLanes) [[unlikely]] {
    for (int i = 0; i < valid; ++i) p[i] = part[i];
  }
}

// Calls body with the dtype as a constant.
template <class Vec, class Body>
void with_dtype(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body.template operator()<DType::f32>();
  if (dtype == DType::bf16) return body.template operator()<DType::bf16>();
  body.template operator()<DType::f16>();
}

// Rows of one head are short and far apart: the hardware's prefetcher does not follow them.
inline constexpr int kRowsAhead = 16;

template <class Vec>
void pack_rows(const RowsView& src, int count, int tile_rows, int head_dim, float* dst) {
  const Columns columns = columns_of<Vec>(head_dim);
  with_dtype<Vec>(src.dtype, [&]<DType kType>() {
    const auto* from = static_cast<const typename Element<kType>::Stored*>(src.data);
    for (int row = 0; row < tile_rows; ++row) {
      for (int panel = 0; panel < columns.count; ++panel) {
        float* to = dst + (std::int64_t{panel} * tile_rows + row) * columns.width;
        for (int i = 0; i < columns.width; i += Vec::kLanes) {
          const int column = panel * columns.width + i;
          const int valid = row < count ? head_dim - column : 0;
          if (row + kRowsAhead < count) __builtin_prefetch(from + src.offset(row + kRowsAhead) + column);
          const Vec x =
              valid > 0 ? load_elements<Vec, kType>(from + src.offset(row) + column, valid) : Vec::zero();
          x.store(to + i);
        }
      }
    }
  });
}

template <class Vec, int kWidth = kPanel<Vec>>
void pack_transposed(const RowsView& src, int count, int head_dim, float* dst) {
  constexpr int kLanes = Vec::kLanes;
  const int padded = (count + kWidth - 1) / kWidth * kWidth;
  with_dtype<Vec>(src.dtype, [&]<DType kType>() {
    const auto* from = static_cast<const typename Element<kType>::Stored*>(src.data);
    for (int row = 0; row < padded; row += kLanes) {
      float* panel = dst + std::int64_t{row / kWidth} * kWidth * head_dim + row % kWidth;
      for (int column = 0; column < head_dim; column += kLanes) {
        const int valid = head_dim - column;
        Vec block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          if (row + i + kRowsAhead < count)
            __builtin_prefetch(from + src.offset(row + i + kRowsAhead) + column);
          block[i] = row + i < count ? load_elements<Vec, kType>(from + src.offset(row + i) + column, valid)
                                     : Vec::zero();
        }
        Vec::transpose(block);
        for (int i = 0; i < lesser(kLanes, valid); ++i) {
          block[i].store(panel + std::int64_t{column + i} * kWidth);
        }
      }
    }
  });
}

// Rows of a packed tile into the view, row i times factors[i * factor_step]; or added to an f32 view.
template <class Vec>
void store_rows(const float* tile, int count, int tile_rows, int head_dim, const float* factors,
                int factor_step, bool add, const RowsView& dst) {
  const Columns columns = columns_of<Vec>(head_dim);
  with_dtype<Vec>(dst.dtype, [&]<DType kType>() {
    auto* to = static_cast<typename Element<kType>::Stored*>(dst.data);
    for (int row = 0; row < count; ++row) {
      const Vec factor = Vec::all(factors[std::int64_t{row} * factor_step]);
      for (int panel = 0; panel < columns.count; ++panel) {
        const float* from = tile + (std::int64_t{panel} * tile_rows + row) * columns.width;
        for (int i = 0; i < columns.width; i += Vec::kLanes) {
          const int column = panel * columns.width + i;
          if (column >= head_dim) break;
          Vec x = Vec::load(from + i) * factor;
          auto* place = to + dst.offset(row) + column;
          if constexpr (kType == DType::f32) {
            if (add) x = x + load_elements<Vec, kType>(place, head_dim - column);
          }
          store_elements<Vec, kType>(x, place, head_dim - column);
        }
      }
    }
  });
}

template <class Vec>
void store_tile(const float* tile, int count, int tile_rows, int head_dim, float factor, bool add,
                const RowsView& dst) {
  store_rows<Vec>(tile, count, tile_rows, head_dim, &factor, 0, add, dst);
}

}  // namespace headroom::cpu
