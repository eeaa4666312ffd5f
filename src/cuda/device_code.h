// Small things that device code of every kernel needs: elements of any dtype as f32, vectors of four, copies
// into shared memory that do not wait, 2^x.
#pragma once

#include <cstdint>

#include "headroom/core/dtype.h"
#include "headroom/core/random.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>

#include "cuda/ptx/arithmetic.h"
#include "cuda/ptx/global.h"
#endif

namespace headroom::cuda {

__device__ __forceinline__ float bits_to_float(std::uint32_t bits) {
  return __uint_as_float(bits);
}

__device__ __forceinline__ float half_to_float(std::uint16_t bits) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(bits));
#else
  Float16 value;
  value.bits = bits;
  return static_cast<float>(value);
#endif
}

__device__ __forceinline__ std::uint16_t float_to_half(float value) {
#if defined(__CUDACC__)
  return __half_as_ushort(__float2half_rn(value));
#else
  return Float16(value).bits;
#endif
}

// Nearest even; NaN stays NaN.
__device__ __forceinline__ std::uint16_t float_to_bfloat(float value) {
  const std::uint32_t word = __float_as_uint(value);
  const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
  return static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded >> 16);
}

__device__ __forceinline__ float load_element(const void* data, DType dtype, std::int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return dtype == DType::bf16 ? bits_to_float(static_cast<std::uint32_t>(bits) << 16) : half_to_float(bits);
}

__device__ __forceinline__ void store_element(void* data, DType dtype, std::int64_t i, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] =
        dtype == DType::bf16 ? float_to_bfloat(value) : float_to_half(value);
  }
}

// Four neighbours; where `aligned` says so, as one access.
__device__ __forceinline__ float4 load_four(const void* data, DType dtype, std::int64_t i, bool aligned) {
  if (!aligned) {
    return make_float4(load_element(data, dtype, i), load_element(data, dtype, i + 1),
                       load_element(data, dtype, i + 2), load_element(data, dtype, i + 3));
  }
  if (dtype == DType::f32) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
  const uint2 words = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(data) + i);
  if (dtype == DType::bf16) {
    return make_float4(bits_to_float(words.x << 16), bits_to_float(words.x & 0xffff0000u),
                       bits_to_float(words.y << 16), bits_to_float(words.y & 0xffff0000u));
  }
  return make_float4(half_to_float(static_cast<std::uint16_t>(words.x)),
                     half_to_float(static_cast<std::uint16_t>(words.x >> 16)),
                     half_to_float(static_cast<std::uint16_t>(words.y)),
                     half_to_float(static_cast<std::uint16_t>(words.y >> 16)));
}

__device__ __forceinline__ void store_four(void* data, DType dtype, std::int64_t i, bool aligned,
                                           float4 four) {
  if (!aligned) {
    store_element(data, dtype, i, four.x);
    store_element(data, dtype, i + 1, four.y);
    store_element(data, dtype, i + 2, four.z);
    store_element(data, dtype, i + 3, four.w);
    return;
  }
  if (dtype == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + i) = four;
    return;
  }
  const auto pair = [&](float low, float high) -> std::uint32_t {
    if (dtype == DType::bf16) return float_to_bfloat(low) | std::uint32_t{float_to_bfloat(high)} << 16;
    return float_to_half(low) | std::uint32_t{float_to_half(high)} << 16;
  };
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + i) =
      uint2{pair(four.x, four.y), pair(four.z, four.w)};
}

// Sixteen bytes to shared memory, or zeros. From compute capability 8.0 the copy goes on while the thread
// does.
__device__ __forceinline__ void copy_sixteen(float* shared, const float* from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::copy_sixteen(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)), from, there ? 16 : 0);
#else
  *reinterpret_cast<float4*>(shared) =
      there ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
#endif
}

// Four bytes, which do not wait either.
template <class Word>
__device__ __forceinline__ void copy_word(Word* shared, const Word* from) {
  static_assert(sizeof(Word) == 4);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::copy_four(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)), from);
#else
  *shared = *from;
#endif
}

// Until this thread's copies have arrived.
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::wait_for_copies();
#endif
}

// to[0 .. Width) <- to + factor values, without waiting for it; where `aligned` says so, as one access.
template <int Width>
__device__ __forceinline__ void add_vector(float* to, const float* values, float factor,
                                           [[maybe_unused]] bool aligned) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_assert(Width == 2 || Width == 4);
  if (aligned) {
    if constexpr (Width == 4) {
      ptx::add_four(to, values[0] * factor, values[1] * factor, values[2] * factor, values[3] * factor);
    } else {
      ptx::add_two(to, values[0] * factor, values[1] * factor);
    }
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < Width; ++i) atomicAdd(to + i, values[i] * factor);
}

// The next number of a counter.
__device__ __forceinline__ int take_number(int* counter) {
  return atomicAdd(counter, 1);
}

// What this thread wrote is seen on the device before what it writes next; so for reads.
__device__ __forceinline__ void fence_device() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  ptx::fence_device();
#elif defined(__CUDACC__)
  __threadfence();
#endif
}

// Turns in a rising order: a block waits until `previous` has given its own (-1: for nobody).
__device__ __forceinline__ void wait_for_turn_after(int previous, const int* turn) {
  while (*const_cast<const volatile int*>(turn) <= previous) {
#if !defined(__CUDACC__)
    Block::current().ask_again("its turn");
#endif
  }
  fence_device();
}
__device__ __forceinline__ void give_turn(int* turn, int own) {
  atomicMax(turn, own + 1);
}

// 2^x within two units in the last place; 0 below 2^-126.
__device__ __forceinline__ float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  return ptx::exp2_approximate(x);
#else
  return exp2f(x);
#endif
}

}  // namespace headroom::cuda
