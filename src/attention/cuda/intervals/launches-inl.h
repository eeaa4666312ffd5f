// Which tiles a call runs on, by head_dim and the shared memory that a block may have.
#pragma once

#include "attention/cuda/intervals/backward-inl.h"
#include "attention/cuda/intervals/forward-inl.h"

namespace headroom::cuda {

// body.template operator()<D>() with the smallest tile that holds head_dim.
template <class Body>
void with_head_dim(int head_dim, const Body& body) {
  if (head_dim <= 16) {
    body.template operator()<16>();
  } else if (head_dim <= 32) {
    body.template operator()<32>();
  } else if (head_dim <= 64) {
    body.template operator()<64>();
  } else if (head_dim <= 128) {
    body.template operator()<128>();
  } else {
    body.template operator()<256>();
  }
}

// Tiles<D>: Forward and Backward, and Small for devices whose shared memory does not hold those.
template <template <int D> class Tiles>
constexpr IntervalKernels make_interval_kernels() {
  return {.forward =
              [](const AttentionCall& call, const Stream& stream) {
                with_head_dim(call.head_dim, [&]<int D>() {
                  using Forward = typename Tiles<D>::Forward;
                  if (Forward::kForwardBytes <= block_shared_bytes(*stream.device)) {
                    launch_forward<Forward>(call, stream);
                  } else {
                    launch_forward<typename Tiles<D>::Small>(call, stream);
                  }
                });
              },
          .backward =
              [](const AttentionCall& call, const Stream& stream) {
                with_head_dim(call.head_dim, [&]<int D>() {
                  using Backward = typename Tiles<D>::Backward;
                  if (Backward::kBackwardBytes <= block_shared_bytes(*stream.device)) {
                    launch_backward<Backward>(call, stream);
                  } else {
                    launch_backward<typename Tiles<D>::Small>(call, stream);
                  }
                });
              }};
}

}  // namespace headroom::cuda
