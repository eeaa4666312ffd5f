// The tiles of the row `portable`.
#pragma once

#include "attention/cuda/intervals/fma_product.h"
#include "attention/cuda/intervals/launches-inl.h"

namespace headroom::cuda {

// 8 x 8 scores per lane where the registers allow it (O takes head_dim / 8 per row and lane, dK and dV half
// as much each), else 4 x 8: then reads of shared memory bound the products at 80 % of the FMA units.
// Backward at 64 has one buffer, so that two blocks fit: one multiplies while the other loads. The small
// tiles fit the 48 KiB of compute capability 6.
template <int D>
struct PortableTiles {
  static constexpr int kWide = D < 64 ? D : 64;
  static constexpr int kNarrow = D < 32 ? D : 32;
  using Product = FmaProduct<(D <= 64 ? 2 : 1)>;
  using Forward = Tiling<Product, D, kWide, 2>;
  using Backward = Tiling<Product, D, kWide, (D == 64 ? 1 : 2)>;
  using Small = Tiling<FmaProduct<1>, D, kNarrow, 1>;
  static_assert(Small::kForwardBytes <= 48 << 10 && Small::kBackwardBytes <= 48 << 10);
  static_assert(Forward::kForwardBytes <= 163 << 10 && Backward::kBackwardBytes <= 99 << 10);
};

}  // namespace headroom::cuda
