// A ring of shared memory stages between one producer and its consumers.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace headroom {

// Which stage of a ring is next, and the parity of its phase.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// In shared memory: `full` once a stage's bytes have arrived, `empty` once every consumer has read them.
template <int kStages>
struct Ring {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];

  __device__ __forceinline__ void init(std::uint32_t producers, std::uint32_t consumers) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full[i], producers);
      ptx::mbarrier_init(empty[i], consumers);
    }
  }
  // Producer: a stage to fill, which starts out free.
  __device__ __forceinline__ void wait_empty(RingPosition<kStages> at) {
    ptx::mbarrier_wait(empty[at.stage], at.parity ^ 1);
  }
  __device__ __forceinline__ void wait_full(RingPosition<kStages> at) {
    ptx::mbarrier_wait(full[at.stage], at.parity);
  }
  __device__ __forceinline__ void publish(RingPosition<kStages> at) { ptx::mbarrier_arrive(full[at.stage]); }
  __device__ __forceinline__ void release(RingPosition<kStages> at) { ptx::mbarrier_arrive(empty[at.stage]); }
};

}  // namespace headroom
