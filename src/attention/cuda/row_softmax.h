// The softmax of a row between launches. Included by kernels (or, for tests, by a .cpp after
// tests/cuda/on_host.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/tiles.h"

namespace headroom::cuda {

// A sum of powers of two, relative to 2^base. A call says where rows have theirs: lse, and row_sum, which is
// null unless rows stay open. Open sums are f64; a row that is closed at once needs no more than f32.
template <class Sum>
struct RowSoftmaxOf {
  float base;
  Sum sum;

  // What a row resumes from, with a row_sum of 0 where there is none. A closed result is one member of the
  // softmax.
  static __device__ __forceinline__ RowSoftmaxOf of(float lse, Sum row_sum) {
    if (row_sum > 0) return {lse, row_sum};
    return {lse * kLog2E, static_cast<Sum>(lse == -kInfinity ? 0 : 1)};
  }
  template <class Call>
  static __device__ __forceinline__ RowSoftmaxOf load(const Call& call, std::int64_t at) {
    return of(call.lse[at], call.row_sum == nullptr ? 0.0 : call.row_sum[at]);
  }
  template <class Call>
  __device__ __forceinline__ void store(const Call& call, std::int64_t at) const {
    if (call.row_sum != nullptr) call.row_sum[at] = sum;
    if (!(sum > 0)) {
      call.lse[at] = -kInfinity;
    } else {
      call.lse[at] = call.row_sum != nullptr ? base : base * kLn2 + logf(static_cast<float>(sum));
    }
  }
  // By what the row's output is multiplied: a row that stays open is not divided.
  template <class Call>
  [[nodiscard]] __device__ __forceinline__ float inverse(const Call& call) const {
    if (call.row_sum != nullptr) return 1;
    return sum > 0 ? 1.0F / static_cast<float>(sum) : 0.0F;
  }
};
using RowSoftmax = RowSoftmaxOf<double>;

}  // namespace headroom::cuda
