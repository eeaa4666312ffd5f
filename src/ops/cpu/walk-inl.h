// Walking a row in vectors. Rules of cpu/micro-inl.h: templates over the vector type of one instruction set,
// everything else always inline, nothing from std.
#pragma once

#include "cpu/micro-inl.h"
#include "ops/cpu/kernels.h"

namespace headroom::cpu {

template <DType kType>
using Stored = typename Element<kType>::Stored;

// body(i, valid) for every vector of a row; valid is short of a whole vector at the end only.
template <class Vec, class Body>
[[gnu::always_inline]] inline void for_vectors(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) body(i, Vec::kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

// The sum over a row of what body(sum, i, valid) adds to its lanes. Four sums hide the latency of an addition
// and keep rounding small.
template <class Vec, class Body>
[[gnu::always_inline]] inline float sum_vectors(std::int64_t count, const Body& body) {
  constexpr int kLanes = Vec::kLanes;
  Vec sums[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  std::int64_t i = 0;
  constexpr std::int64_t kStep = 4 * std::int64_t{kLanes};
  for (; i + kStep <= count; i += kStep) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = body(sums[j], i + std::int64_t{j} * kLanes, kLanes);
  }
  for (; i + kLanes <= count; i += kLanes) sums[0] = body(sums[0], i, kLanes);
  if (i < count) sums[1] = body(sums[1], i, static_cast<int>(count - i));
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Doubles of one register, half as many as floats, and what belongs to them. GCC's and Clang's generic
// vectors: f64 is rare enough here not to need a type per instruction set. (The size of a generic vector
// cannot be a template's argument in GCC.)
template <int kLanes>
struct WideTypes;
template <>
struct WideTypes<2> {
  using Doubles = double __attribute__((vector_size(16)));
  using Words = std::int64_t __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(8)));
};
template <>
struct WideTypes<4> {
  using Doubles = double __attribute__((vector_size(32)));
  using Words = std::int64_t __attribute__((vector_size(32)));
  using Floats = float __attribute__((vector_size(16)));
};
template <>
struct WideTypes<8> {
  using Doubles = double __attribute__((vector_size(64)));
  using Words = std::int64_t __attribute__((vector_size(64)));
  using Floats = float __attribute__((vector_size(32)));
};

template <class Vec>
struct Wide {
  static constexpr int kLanes = Vec::kLanes / 2;
  using Doubles = typename WideTypes<kLanes>::Doubles;
  using Words = typename WideTypes<kLanes>::Words;
  using Floats = typename WideTypes<kLanes>::Floats;

  [[gnu::always_inline]] static Doubles load(const double* p) {
    Doubles x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  [[gnu::always_inline]] static Doubles load(const float* p) {
    Floats x;
    __builtin_memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, Doubles);
  }
  [[gnu::always_inline]] static void store(Doubles x, float* p) {
    const Floats narrow = __builtin_convertvector(x, Floats);
    __builtin_memcpy(p, &narrow, sizeof narrow);
  }
};

}  // namespace headroom::cpu
