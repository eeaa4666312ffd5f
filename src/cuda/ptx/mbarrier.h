// Barriers in shared memory that count arrivals and bytes (mbarrier), and the sixteen named ones (bar).
#pragma once

#include <cstdint>

namespace headroom::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(std::uint64_t& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives, and announces bytes that the copy engine will add to the phase.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}

// Until the phase of this parity is over.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t& barrier, std::uint32_t parity) {
  std::uint32_t over = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(over)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  } while (over == 0);
}

// Likewise, for long waits: the thread is suspended meanwhile, where a wait without a limit reads the barrier
// every 50 clocks.
__device__ __forceinline__ void mbarrier_wait_asleep(std::uint64_t& barrier, std::uint32_t parity) {
  constexpr int kAtMost = 10'000'000;  // nanoseconds, then it is suspended again
  std::uint32_t over = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2, %3;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(over)
        : "r"(shared_address(&barrier)), "r"(parity), "n"(kAtMost)
        : "memory");
  } while (over == 0);
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Ordinary stores to shared memory before, reads by tensor cores and the copy engine after.
__device__ __forceinline__ void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace headroom::ptx
