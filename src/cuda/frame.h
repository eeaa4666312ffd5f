// The frame of the Hopper kernels. A block's first warpgroup loads (the producer), the others compute (the
// consumers), with registers that the first gives them. What is loaded passes through rings of shared memory
// (pipeline.h), and so do the descriptions of the tiles that a persistent block works on. A kernel supplies
//   Shape     its Roles, and the sizes of its tiles;
//   Shared    what a block has in shared memory, its Tiles too (`tiles`), with init(): how many arrive at
//             every ring;
//   describe  what a tile is;
//   produce   what the first warpgroup does for it: loading, and in backward adding dQ to memory;
//   consume   what is computed for it, and how it is finished.
// The call that it is launched with has its number of tiles (`order.tiles()`) and their counter
// (`next_tile`).
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
// A Tile has `none`: no work is left.
inline constexpr int kTileSlots = 4;
using TilePosition = RingPosition<kTileSlots>;
inline constexpr int kHandOutThread = 96;  // of the producer's last warp

template <class Tile>
struct Tiles {
  Ring<1> request_ring;
  Ring<kTileSlots> ring;
  Tile slot[kTileSlots];

  // Readers are threads and warps that wait for every tile and pass it.
  __device__ __forceinline__ void init(std::uint32_t readers) {
    request_ring.init(1, 1);
    ring.init(1, readers);
  }
  // Called by the loading thread, once for every tile.
  __device__ __forceinline__ void request_next() { request_ring.publish({}); }
  // Returns false where no work is left.
  __device__ __forceinline__ bool wait(TilePosition at) {
    ring.wait_full(at);
    return !slot[at.stage()].none;
  }
  __device__ __forceinline__ const Tile& operator[](TilePosition at) const { return slot[at.stage()]; }
  __device__ __forceinline__ void pass(TilePosition& at) { ring.pass(at); }
  __device__ __forceinline__ void pass_warp(TilePosition& at) { ring.pass_warp(at); }

  // Tiles are those with numbers below `count`; describe(tile, number) writes one.
  template <class Describe>
  __device__ __forceinline__ void hand_out(int* counter, int count, const Describe& describe) {
    TilePosition at;
    RingPosition<1> requested;
    for (int index = static_cast<int>(blockIdx.x);;
         index = static_cast<int>(gridDim.x) + atomicAdd(counter, 1)) {
      ring.wait_empty(at);
      Tile& tile = slot[at.stage()];
      const bool none = index >= count;
      if (!none) describe(tile, index);
      tile.none = none;
      ring.publish(at);
      if (none) return;
      at.advance();
      request_ring.wait_full_asleep(requested);
      requested.advance();
    }
  }
};

// A kernel: describe(tile, number) writes a tile; produce(shared) runs in the first warpgroup, but for the
// thread that hands out tiles, and consume(shared) in the others.
template <class Shape, class Shared, class Call, class Describe, class Produce, class Consume>
__device__ __forceinline__ void run_block(const Call& call, const Describe& describe, const Produce& produce,
                                          const Consume& consume) {
  auto& shared = begin_block<Shared>();
  const int tiles = call.order.tiles();
  Shape::run(
      [&] {
        produce(shared);
        if (threadIdx.x == kHandOutThread) shared.tiles.hand_out(call.next_tile, tiles, describe);
      },
      [&] { consume(shared); });
}

}  // namespace headroom
