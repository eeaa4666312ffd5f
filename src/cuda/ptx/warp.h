// Small instructions of a warp: registers handed over, 16-bit pairs, matrix stores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/ptx/arithmetic.h"
#include "cuda/ptx/mbarrier.h"

namespace headroom::ptx {

// A warpgroup's registers per thread from here on; the kernel needs launch bounds for it to take effect.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Made here, where it stands: kept in a register, where the compiler would read a kernel's argument again at
// each use; or not kept, where it would hold what follows from it over a loop.
__device__ __forceinline__ int in_register(int value) {
  int kept;
  asm volatile("mov.b32 %0, %1;" : "=r"(kept) : "r"(value));
  return kept;
}

template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  return pack_bf16(low, high);
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  return pack_f16(low, high);
}

// Four 8 x 8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8.
__device__ __forceinline__ void store_matrix(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                             std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// Each tile transposed: lane i gives the address of column i % 8 of tile i / 8.
__device__ __forceinline__ void store_matrix_transposed(std::uint32_t address, std::uint32_t a,
                                                        std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void load_matrix(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

template <class Element>
__device__ __forceinline__ float2 unpack(std::uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000));
}
template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace headroom::ptx
