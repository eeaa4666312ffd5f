// The tiles of the row `tf32x3`, and which of them a call runs on.
#pragma once

#include "attention/cuda/interval_backward-inl.h"
#include "attention/cuda/interval_forward-inl.h"
#include "attention/cuda/portable.h"
#include "attention/cuda/tf32.h"
#include "attention/cuda/tf32_product.h"

namespace headroom::cuda {

// Forward: 32 rows per warp where the registers allow it, so that a split of K and V serves two products.
template <int D, int Terms>
struct Tf32Tiles {
  static constexpr int kWide = D < 64 ? D : 64;
  using Forward = Tiling<Tf32Product<(D <= 64 ? 2 : 1), Terms>, D, kWide, 2>;
  using Backward = Tiling<Tf32Product<1, Terms>, D, kWide, 2>;
  static_assert(Forward::kForwardBytes <= 163 << 10 && Backward::kBackwardBytes <= 99 << 10);
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
        launch_forward<typename Tiles::Backward>(call, stream);
      }
    });
  };
  kernels.backward = [](const AttentionCall& call, const Stream& stream) {
    with_head_dim(call.head_dim, [&]<int D>() {
      launch_backward<typename Tf32Tiles<D, Terms>::Backward>(call, stream);
    });
  };
  return kernels;
}

}  // namespace headroom::cuda
