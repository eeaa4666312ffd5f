// As src/cuda/ptx/warp.h, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/ptx/arithmetic.h"
#include "cuda/ptx/mbarrier.h"

namespace headroom::ptx {

template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}
inline int in_register(int value) {
  return value;
}

template <class Element>
std::uint32_t pack(float low, float high);
template <>
inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  return pack_bf16(low, high);
}
template <>
inline std::uint32_t pack<__half>(float low, float high) {
  return pack_f16(low, high);
}

template <class Element>
float2 unpack(std::uint32_t pair) {
  const auto half = [&](int shift) {
    return static_cast<float>(std::bit_cast<Element>(static_cast<std::uint16_t>(pair >> shift)));
  };
  return {half(0), half(16)};
}

// Element `column` of row `row` of the 8 x 8 tile whose rows are at these lanes' addresses.
inline std::uint16_t& matrix_element(const cuda::Block::Words* lanes, unsigned tile, unsigned row,
                                     unsigned column) {
  const std::uint32_t address = lanes[8 * tile + row][0];
  cuda::Block::require(address % 16 == 0, "a row of a matrix begins at a multiple of 16 bytes");
  return reinterpret_cast<std::uint16_t*>(reinterpret_cast<std::byte*>(cuda::shared_memory) +
                                          address)[column];
}

template <bool kTransposed>
void store_matrix_tiles(std::uint32_t address, const std::uint32_t (&from)[4]) {
  const unsigned lane = cuda::threadIdx.x % 32;
  const cuda::Block::Words* lanes = cuda::Block::current().exchange({address});
  for (unsigned tile = 0; tile < 4; ++tile) {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = lane / 4;
      const unsigned column = lane % 4 * 2 + half;
      matrix_element(lanes, tile, kTransposed ? column : row, kTransposed ? row : column) =
          static_cast<std::uint16_t>(from[tile] >> 16 * half);
    }
  }
  cuda::Block::current().exchange_done();
}
inline void store_matrix(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                         std::uint32_t d) {
  store_matrix_tiles<false>(address, {a, b, c, d});
}
inline void store_matrix_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                    std::uint32_t d) {
  store_matrix_tiles<true>(address, {a, b, c, d});
}
inline void load_matrix(std::uint32_t address, std::uint32_t (&to)[4]) {
  const unsigned lane = cuda::threadIdx.x % 32;
  const cuda::Block::Words* lanes = cuda::Block::current().exchange({address});
  for (unsigned tile = 0; tile < 4; ++tile) {
    to[tile] = matrix_element(lanes, tile, lane / 4, lane % 4 * 2) |
               std::uint32_t{matrix_element(lanes, tile, lane / 4, lane % 4 * 2 + 1)} << 16;
  }
  cuda::Block::current().exchange_done();
}

}  // namespace headroom::ptx
