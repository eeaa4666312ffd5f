// As src/cuda/ptx/mbarrier.h, on the host. An address in shared memory is counted from the block's first
// byte.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/on_host.h"

namespace headroom {

// Of the language, for device code that is no kernel of the room cuda.
using cuda::__shfl_sync;
using cuda::__syncthreads;
using cuda::__syncwarp;
using cuda::atomicAdd;
using cuda::blockIdx;
using cuda::gridDim;
using cuda::threadIdx;

namespace ptx {

inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(pointer) -
                                    reinterpret_cast<const std::byte*>(cuda::shared_memory));
}

// What the eight bytes of a barrier hold here.
struct HostBarrier {
  std::uint16_t arrivals;  // of every phase
  std::uint16_t missing : 15;
  std::uint16_t parity : 1;  // of the phase that is not over
  std::int32_t bytes;        // announced, and not there yet

  template <class Change>
  static void change(std::uint64_t& barrier, const Change& change) {
    auto now = std::bit_cast<HostBarrier>(barrier);
    cuda::Block::require(barrier != ~std::uint64_t{0}, "a barrier is used before it is set up");
    change(now);
    if (now.missing == 0 && now.bytes == 0) {
      now.missing = now.arrivals & 0x7FFF;
      now.parity ^= 1;
    }
    barrier = std::bit_cast<std::uint64_t>(now);
  }
};
static_assert(sizeof(HostBarrier) == sizeof(std::uint64_t));

inline void mbarrier_init(std::uint64_t& barrier, std::uint32_t arrivals) {
  barrier = std::bit_cast<std::uint64_t>(HostBarrier{.arrivals = static_cast<std::uint16_t>(arrivals),
                                                     .missing = static_cast<std::uint16_t>(arrivals & 0x7FFF),
                                                     .parity = 0,
                                                     .bytes = 0});
}
inline void mbarrier_init_fence() {}

inline void mbarrier_arrive_expect(std::uint64_t& barrier, std::uint32_t bytes) {
  HostBarrier::change(barrier, [&](HostBarrier& now) {
    cuda::Block::require(now.missing > 0, "more arrive at a barrier than it was set up for");
    now.bytes += static_cast<std::int32_t>(bytes);
    --now.missing;
  });
}
inline void mbarrier_arrive(std::uint64_t& barrier) {
  mbarrier_arrive_expect(barrier, 0);
}
inline void mbarrier_complete(std::uint64_t& barrier, std::uint32_t bytes) {
  HostBarrier::change(barrier, [&](HostBarrier& now) { now.bytes -= static_cast<std::int32_t>(bytes); });
}

inline void mbarrier_wait(std::uint64_t& barrier, std::uint32_t parity) {
  cuda::Block::current().wait_until("a barrier in shared memory",
                                    [&] { return std::bit_cast<HostBarrier>(barrier).parity != parity; });
}
inline void mbarrier_wait_asleep(std::uint64_t& barrier, std::uint32_t parity) {
  mbarrier_wait(barrier, parity);
}

inline void named_barrier_sync(int id, int threads) {
  cuda::Block::current().sync(id, threads);
}
inline void named_barrier_arrive(int id, int threads) {
  cuda::Block::current().arrive(id, threads);
}
inline void async_proxy_fence() {
  cuda::Block::current().fence();
}

}  // namespace ptx
}  // namespace headroom
