// As src/cuda/ptx/wgmma.h, on the host: products go on beside the threads, a warp's sixteen rows in the order
// in which they were issued.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <type_traits>

#include "cuda/ptx/matrix_descriptor.h"
#include "cuda/ptx/warp.h"

namespace headroom::ptx {

// A warp's share of a product; every lane brings its own sums and, where A is there, its own registers.
struct HostProduct {
  bool bf16;
  int n;
  bool accumulate;
  bool a_in_registers;
  Major a_major;
  Major b_major;
  MatrixDescriptor a;
  MatrixDescriptor b;
  std::array<float*, 32> sums{};
  std::array<std::array<std::uint32_t, 4>, 32> a_registers{};
};

// Issues this lane's share.
void issue_product(const HostProduct& product, float* sums, const std::uint32_t* a_registers);
void commit_products();
// Until all but so many of this lane's groups are done.
void wait_for_products(int pending);

inline void wgmma_fence() {}
inline void wgmma_commit() {
  commit_products();
}
template <int kCount>
void wgmma_pin(float (&)[kCount]) {}
template <int kPending, int... kCounts>
void wgmma_wait([[maybe_unused]] float (&... sums)[kCounts]) {
  wait_for_products(kPending);
}
inline void finish_first(std::uint32_t bits, const void*) {
  cuda::Block::require(bits == 0, "finish_first is given zeros");
}

template <class Element, int N, Major kA, Major kB>
void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
  issue_product({.bf16 = std::is_same_v<Element, __nv_bfloat16>,
                 .n = N,
                 .accumulate = accumulate,
                 .a_in_registers = false,
                 .a_major = kA,
                 .b_major = kB,
                 .a = a,
                 .b = b},
                d, nullptr);
}
template <class Element, int N, Major kB>
void wgmma(float (&d)[N / 2], const std::uint32_t* a, MatrixDescriptor b, bool accumulate) {
  issue_product({.bf16 = std::is_same_v<Element, __nv_bfloat16>,
                 .n = N,
                 .accumulate = accumulate,
                 .a_in_registers = true,
                 .a_major = Major::inner,
                 .b_major = kB,
                 .a = {},
                 .b = b},
                d, a);
}

}  // namespace headroom::ptx
