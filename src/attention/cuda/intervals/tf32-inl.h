// The tiles of the rows `tf32x3` and `tf32`.
#pragma once

#include <type_traits>

#include "attention/cuda/intervals/launches-inl.h"
#include "attention/cuda/intervals/tf32_product.h"

namespace headroom::cuda {

// Forward: 32 rows per warp where the registers allow it, so that a split of K and V serves two products.
// Backward from 128 on has twice the warps, two to the same rows: the sums of dK and dV leave registers for
// the products of several columns to go on side by side. It takes 144 KiB of shared memory.
template <int D, int Terms>
struct Tf32Tiles {
  static constexpr int kWide = D < 64 ? D : 64;
  using Forward = Tiling<Tf32Product<(D <= 64 ? 2 : 1), Terms>, D, kWide, 2>;
  using Small = Tiling<Tf32Product<1, Terms>, D, kWide, 2>;
  using Wide = Tiling<Tf32Product<2, Terms, 2>, D, kWide, 2, 1>;
  using Backward = std::conditional_t<(D <= 64), Small, Wide>;
  static_assert(Forward::kForwardBytes <= 163 << 10 && Backward::kBackwardBytes <= 163 << 10);
  static_assert(Small::kBackwardBytes <= 99 << 10);
};

template <int D>
using Tf32x3Tiles = Tf32Tiles<D, 3>;
template <int D>
using Tf32SingleTiles = Tf32Tiles<D, 1>;

}  // namespace headroom::cuda
