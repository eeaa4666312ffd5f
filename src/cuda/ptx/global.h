// Global memory: copies to shared memory that do not wait, sums, and the order in which others see writes.
#pragma once

#include <cstdint>

namespace headroom::ptx {

// Sixteen bytes, zeros after the first `bytes`; four bytes. From compute capability 8.0.
__device__ __forceinline__ void copy_sixteen(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_four(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// The line around an address, into the L2; nothing waits for it.
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Neighbours, as one access: of an assignment to a uint4 the compiler may make four.
__device__ __forceinline__ void store_two(void* to, std::uint32_t a, std::uint32_t b) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_four(void* to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                           std::uint32_t d) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Sums of neighbours, as one access. From compute capability 9.0.
__device__ __forceinline__ void add_two(float* to, float a, float b) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// What this thread wrote is seen on the device before what it writes next; so for reads. This and what
// follows: from compute capability 7.0.
__device__ __forceinline__ void fence_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// What this thread reads afterwards is as new as the number.
__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// One more, once what this thread wrote before is visible to the device.
__device__ __forceinline__ void release_increment(int* to) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(to) : "memory");
}

// Between kernels of a stream, from compute capability 9.0: the next one may begin once all blocks have said
// so; and until those before it have ended and what they wrote is visible.
__device__ __forceinline__ void let_next_kernel_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_kernels_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace headroom::ptx
