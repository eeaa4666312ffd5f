// Numbers in global memory by which blocks wait for each other.
#pragma once

namespace headroom::ptx {

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

}  // namespace headroom::ptx
