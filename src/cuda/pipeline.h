// A ring of shared memory stages between one producer and its consumers.
#pragma once

#include "cuda/ptx/mbarrier.h"

namespace headroom {

// How many steps a ring has gone; which stage is next, and the parity of its phase. One register: a launch
// has fewer than 2^32 steps.
template <int kStages>
struct RingPosition {
  std::uint32_t step = 0;

  [[nodiscard]] __device__ __forceinline__ int stage() const { return static_cast<int>(step % kStages); }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t parity() const { return step / kStages % 2; }
  __device__ __forceinline__ void advance() { ++step; }
};

// In shared memory: `full` once a stage's bytes have arrived, `empty` once every consumer has read them. A
// producer or consumer is one thread, or a warp, which arrives once for all of its threads.
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
    ptx::mbarrier_wait(empty[at.stage()], at.parity() ^ 1);
  }
  // Likewise, with `bytes` that the copy engine will bring. Returns the barrier that counts them.
  __device__ __forceinline__ std::uint64_t& wait_to_load(RingPosition<kStages> at, std::uint32_t bytes) {
    wait_empty(at);
    ptx::mbarrier_arrive_expect(full[at.stage()], bytes);
    return full[at.stage()];
  }
  __device__ __forceinline__ void wait_full(RingPosition<kStages> at) {
    ptx::mbarrier_wait(full[at.stage()], at.parity());
  }
  __device__ __forceinline__ void wait_full_asleep(RingPosition<kStages> at) {
    ptx::mbarrier_wait_asleep(full[at.stage()], at.parity());
  }
  __device__ __forceinline__ void publish(RingPosition<kStages> at) {
    ptx::mbarrier_arrive(full[at.stage()]);
  }
  __device__ __forceinline__ void release(RingPosition<kStages> at) {
    ptx::mbarrier_arrive(empty[at.stage()]);
  }
  __device__ __forceinline__ void publish_warp(RingPosition<kStages> at) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) publish(at);
  }
  __device__ __forceinline__ void release_warp(RingPosition<kStages> at) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) release(at);
  }
  // Releases a stage and goes on to the next.
  __device__ __forceinline__ void pass(RingPosition<kStages>& at) {
    release(at);
    at.advance();
  }
  __device__ __forceinline__ void pass_warp(RingPosition<kStages>& at) {
    release_warp(at);
    at.advance();
  }
};

template <class... Rings>
__device__ __forceinline__ void init_rings(std::uint32_t producers, std::uint32_t consumers,
                                           Rings&... rings) {
  (rings.init(producers, consumers), ...);
}

}  // namespace headroom
