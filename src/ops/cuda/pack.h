// Neighbours as they are stored, moved as one or two accesses of whole words: of an aggregate of 16-bit
// elements the compiler may make as many accesses as it has elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/device_code.h"

namespace headroom::cuda {

template <DType kType>
using Stored = std::conditional_t<kType == DType::f32, float, std::uint16_t>;

template <DType kType>
__device__ __forceinline__ float widen(Stored<kType> value) {
  if constexpr (kType == DType::f32) {
    return value;
  } else if constexpr (kType == DType::bf16) {
    return bits_to_float(static_cast<std::uint32_t>(value) << 16);
  } else {
    return half_to_float(value);
  }
}

template <DType kType>
__device__ __forceinline__ Stored<kType> narrow(float value) {
  if constexpr (kType == DType::f32) {
    return value;
  } else if constexpr (kType == DType::bf16) {
    return float_to_bfloat(value);
  } else {
    return float_to_half(value);
  }
}

// Two neighbours in a word, the first one below.
template <DType kType>
__device__ __forceinline__ std::uint32_t narrow_two(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return kType == DType::bf16 ? ptx::pack_bf16(first, second) : ptx::pack_f16(first, second);
#else
  return narrow<kType>(first) | static_cast<std::uint32_t>(narrow<kType>(second)) << 16;
#endif
}

// Two or four words to global memory, at a multiple of their size.
template <class... Words>
__device__ __forceinline__ void store_words(void* to, Words... words) {
  static_assert(sizeof...(words) == 2 || sizeof...(words) == 4);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof...(words) == 2) {
    ptx::store_two(to, words...);
  } else {
    ptx::store_four(to, words...);
  }
#else
  const std::uint32_t stored[] = {words...};
  std::memcpy(to, stored, sizeof(stored));
#endif
}

template <DType kType, int kCount>
struct Pack {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(Stored<kType>)) / 4;
  static_assert(kWords == 2 || kWords % 4 == 0);
  std::uint32_t words[kWords];

  // From and to addresses that are multiples of its size, up to sixteen bytes.
  static __device__ __forceinline__ Pack load(const Stored<kType>* from) {
    Pack pack;
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      pack.words[0] = two.x;
      pack.words[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
        pack.words[i] = four.x;
        pack.words[i + 1] = four.y;
        pack.words[i + 2] = four.z;
        pack.words[i + 3] = four.w;
      }
    }
    return pack;
  }
  __device__ __forceinline__ void store(Stored<kType>* to) const {
    if constexpr (kWords == 2) {
      store_words(to, words[0], words[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        store_words(reinterpret_cast<uint4*>(to) + i / 4, words[i], words[i + 1], words[i + 2], words[i + 3]);
      }
    }
  }

  // Between two uses: what was widened for the first is made again for the second. A compiler that sees the
  // same words in both keeps it, in twice the registers.
  __device__ __forceinline__ void stay_narrow() {
#pragma unroll
    for (std::uint32_t& word : words) asm volatile("" : "+r"(word));
  }

  static __device__ __forceinline__ Pack of(const float* values) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kType == DType::f32) {
        pack.words[i] = __float_as_uint(values[i]);
      } else {
        pack.words[i] = narrow_two<kType>(values[2 * i], values[2 * i + 1]);
      }
    }
    return pack;
  }
  __device__ __forceinline__ float wide(int i) const {
    if constexpr (kType == DType::f32) {
      return bits_to_float(words[i]);
    } else if constexpr (kType == DType::bf16) {
      return bits_to_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    } else {
      return half_to_float(bits(i));
    }
  }

  // An element of sixteen bits.
  __device__ __forceinline__ std::uint16_t bits(int i) const {
    return static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
  }
  __device__ __forceinline__ void set_bits(int i, std::uint16_t element) {
    const int shift = i % 2 * 16;
    words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | static_cast<std::uint32_t>(element) << shift;
  }
  __device__ __forceinline__ void set(int i, Stored<kType> element) {
    if constexpr (kType == DType::f32) {
      words[i] = __float_as_uint(element);
    } else {
      set_bits(i, element);
    }
  }
  __device__ __forceinline__ Stored<kType> get(int i) const {
    if constexpr (kType == DType::f32) {
      return bits_to_float(words[i]);
    } else {
      return bits(i);
    }
  }
};

}  // namespace headroom::cuda
