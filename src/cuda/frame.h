// The frame of the Hopper kernels. A block's first warpgroup loads (the producer), the others compute (the
// consumers), with registers that the first gives them. What is loaded passes through rings of shared memory
// (pipeline.h), and so do the descriptions of the tiles that a persistent block works on. A kernel supplies
//   Shape    its Roles, and the sizes of its tiles;
//   Shared   what a block has in shared memory, with init(): how many arrive at every ring;
//   produce  what it loads for a tile;  consume  what it computes for a tile, and how it finishes it.
#pragma once

#include "cuda/pipeline.h"
#include "cuda/ptx/wgmma.h"

namespace headroom {

// This thread's warpgroup of the block: uniform, and known so.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ float4 raw[];
  return *reinterpret_cast<Shared*>(raw);
}

// Returns the block's shared memory with its rings set up.
template <class Shared>
__device__ __forceinline__ Shared& begin_block() {
  auto& shared = shared_memory<Shared>();
  if (threadIdx.x == 0) {
    shared.init();
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  return shared;
}

// Who is in a block, and how its registers are split. A block of n threads begins with 64 Ki / n registers
// for each, in eights; what its consumers do not take stays with the producer.
template <int kOfConsumers, int kRegisters>
struct Roles {
  static constexpr int kConsumers = kOfConsumers;
  static constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kRegisters;
  static constexpr int kProducerRegisters =
      (64 << 10) / kThreads / 8 * 8 * (kConsumers + 1) - kConsumers * kConsumerRegisters;
  static_assert(kProducerRegisters >= 24 && kProducerRegisters % 8 == 0);

  template <class Produce, class Consume>
  __device__ __forceinline__ static void run(const Produce& produce, const Consume& consume) {
    if (threadIdx.x < kWarpgroup) {
      ptx::give_registers<kProducerRegisters>();
      produce();
    } else {
      ptx::take_registers<kConsumerRegisters>();
      consume();
    }
  }
};

// The tiles that a persistent block works on: its own number, then numbers from a counter in global memory.
// The thread that loads describes each in shared memory, where it stays until all are done with it: registers
// are short. Shared has `Ring<2> tile_ring; Tile tile[2];`, and a Tile has `none`: no work is left.
__device__ __forceinline__ int first_tile() {
  return static_cast<int>(blockIdx.x);
}
__device__ __forceinline__ int next_tile(int* counter) {
  return static_cast<int>(gridDim.x) + atomicAdd(counter, 1);
}

// The producer's describe(tile) writes to shared memory, for the others to read.
template <class Shared, class Describe>
__device__ __forceinline__ auto& hand_out_tile(Shared& shared, RingPosition<2>& at,
                                               const Describe& describe) {
  shared.tile_ring.wait_empty(at);
  auto& tile = shared.tile[at.stage()];
  describe(tile);
  shared.tile_ring.publish(at);
  at.advance();
  return tile;
}

// Everybody else waits for it. Returns false where no work is left.
template <class Shared>
__device__ __forceinline__ bool wait_for_tile(Shared& shared, RingPosition<2> at) {
  shared.tile_ring.wait_full(at);
  return !shared.tile[at.stage()].none;
}

}  // namespace headroom
