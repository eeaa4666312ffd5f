// The tiles of the rows `tf32x3` and `tf32`, and which of them a call runs on.
#pragma once

#include <type_traits>

#include "attention/cuda/intervals/backward-inl.h"
#include "attention/cuda/intervals/forward-inl.h"
#include "attention/cuda/intervals/portable.h"
#include "attention/cuda/intervals/tf32.h"
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

// The shared launches are those of `kernels`.
template <int Terms>
IntervalKernels make_tf32_kernels(IntervalKernels kernels) {
  kernels.forward = [](const AttentionCall& call, const Stream& stream) {
    with_head_dim(call.head_dim, [&]<int D>() {
      using Tiles = Tf32Tiles<D, Terms>;
      if (Tiles::Forward::kForwardBytes <= block_shared_bytes(*stream.device)) {
        launch_forward<typename Tiles::Forward>(call, stream);
      } else {
        launch_forward<typename Tiles::Small>(call, stream);
      }
    });
  };
  kernels.backward = [](const AttentionCall& call, const Stream& stream) {
    with_head_dim(call.head_dim, [&]<int D>() {
      using Tiles = Tf32Tiles<D, Terms>;
      if (Tiles::Backward::kBackwardBytes <= block_shared_bytes(*stream.device)) {
        launch_backward<typename Tiles::Backward>(call, stream);
      } else {
        launch_backward<typename Tiles::Small>(call, stream);
      }
    });
  };
  return kernels;
}

}  // namespace headroom::cuda
