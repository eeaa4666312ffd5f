// The frame of the Hopper kernels. A block's first warpgroup loads (the producer), the others compute (the
// consumers), with registers that the first gives them. What is loaded passes through rings of shared memory
// (pipeline.h), and so do the descriptions of the tiles that a persistent block works on. A kernel supplies
//   Shape     its Roles, and the sizes of its tiles;
//   Shared    what a block has in shared memory, with init(): how many arrive at every ring;
//   describe  what a tile is;  load  what is loaded for it;
//   consume   what is computed for it, and how it is finished.
#pragma once

#include "cuda/pipeline.h"
#include "cuda/ptx/global.h"
#include "cuda/ptx/wgmma.h"

namespace headroom {

// This thread's warpgroup of the block: uniform, and known so.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ float4 raw[];
#else
  float4* raw = cuda::shared_memory;
#endif
  return *reinterpret_cast<Shared*>(raw);
}

// Returns the block's shared memory with its rings set up, once the kernels before have ended.
template <class Shared>
__device__ __forceinline__ Shared& begin_block() {
  auto& shared = shared_memory<Shared>();
  if (threadIdx.x == 0) {
    shared.init();
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernels_before();
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
// One thread of the producer, kHandOutThread, describes each in shared memory, where it stays until all are
// done with it: registers are short. It takes the next number when the thread that loads requests it, near
// the end of its tile: taken earlier, long tiles would wait in one block while another has nothing to do.
// Shared has `Ring<1> request_ring; Ring<kTileSlots> tile_ring; Tile tile[kTileSlots];`, and a Tile has
// `none`: no work is left.
inline constexpr int kTileSlots = 4;
using TilePosition = RingPosition<kTileSlots>;
inline constexpr int kHandOutThread = 96;  // of the producer's last warp

// Called by the loading thread, once for every tile.
template <class Shared>
__device__ __forceinline__ void request_next_tile(Shared& shared) {
  shared.request_ring.publish({});
}

// Tiles are those with numbers below `tiles`; describe(tile, number) writes one.
template <class Shared, class Describe>
__device__ __forceinline__ void hand_out_tiles(Shared& shared, int* counter, int tiles,
                                               const Describe& describe) {
  TilePosition at;
  RingPosition<1> requested;
  for (int index = static_cast<int>(blockIdx.x);;
       index = static_cast<int>(gridDim.x) + atomicAdd(counter, 1)) {
    shared.tile_ring.wait_empty(at);
    auto& tile = shared.tile[at.stage()];
    const bool none = index >= tiles;
    if (!none) describe(tile, index);
    tile.none = none;
    shared.tile_ring.publish(at);
    if (none) return;
    at.advance();
    shared.request_ring.wait_full_asleep(requested);
    requested.advance();
  }
}

// Everybody else waits for a tile. Returns false where no work is left.
template <class Shared>
__device__ __forceinline__ bool wait_for_tile(Shared& shared, TilePosition at) {
  shared.tile_ring.wait_full(at);
  return !shared.tile[at.stage()].none;
}

}  // namespace headroom
