// Rows of any dtype as f32, eight neighbours at a time: one access of sixteen bytes where they are 16-bit and
// aligned, two where they are f32. Every kernel of the small operations walks so.
#pragma once

#include <algorithm>
#include <cstdint>

#include "headroom/core/checked.h"
#include "headroom/core/error.h"
#include "headroom/core/tensor_view.h"
#include "ops/cuda/pack.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {

#if defined(__CUDACC__)
extern __shared__ float4 shared_memory[];  // as much as the launch asks for
#endif
inline constexpr int kThreads = 256;  // of every block
inline constexpr int kWarp = 32;
inline constexpr int kEight = 8;

// body.operator()<the dtype>()
template <class Body>
void with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::bf16: return body.template operator()<DType::bf16>();
    case DType::f16: return body.template operator()<DType::f16>();
    default: return body.template operator()<DType::f32>();
  }
}

// body.operator()<the dtype of x, that of a weight: the same, or f32>()
template <class Body>
void with_dtypes(DType x, DType weight, const Body& body) {
  with_dtype(x, [&]<DType kType>() {
    if (weight == kType) return body.template operator()<kType, kType>();
    check(weight == DType::f32, "a weight of {} for elements of {}; accepted: {} or f32", name(weight),
          name(x), name(x));
    if constexpr (kType != DType::f32) body.template operator()<kType, DType::f32>();
  });
}

struct Eight {
  float at[kEight];
};

template <DType kType>
using StoredEight = Pack<kType, kEight>;

// What two lengths divide into; most fit 32 bits, where a division is a fifth of the work.
__device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if ((static_cast<std::uint64_t>(a) | static_cast<std::uint64_t>(b)) >> 32 == 0) {
    return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  }
  return a / b;
}

struct RowPlace {
  std::int64_t outer;
  std::int64_t inner;
};

// Rows with unit stride inside: [outer, inner, dim].
template <DType kType>
struct RowsOf {
  Stored<kType>* data = nullptr;
  std::int64_t outer_stride = 0;
  std::int64_t inner_stride = 0;
  std::int64_t inner = 1;  // rows per outer one
  bool aligned = false;    // every row, to sixteen bytes

  // The same for all tensors of one shape.
  __device__ __forceinline__ RowPlace place(std::int64_t i) const {
    if (inner == 1) return {i, 0};
    const std::int64_t outer = quotient(i, inner);
    return {outer, i - outer * inner};
  }
  __device__ __forceinline__ Stored<kType>* at(const RowPlace& place) const {
    return data + place.outer * outer_stride + place.inner * inner_stride;
  }
  __device__ __forceinline__ Stored<kType>* row(std::int64_t i) const { return at(place(i)); }
  // Of views whose rank is known to be 2 or less.
  __device__ __forceinline__ Stored<kType>* at(std::int64_t outer) const {
    return data + outer * outer_stride;
  }
};

// The rows of a view of rank 1 to 3; a dense one may be walked as a single row.
template <DType kType>
RowsOf<kType> rows_of(const TensorView& view) {
  const int last = view.rank() - 1;
  RowsOf<kType> rows{.data = static_cast<Stored<kType>*>(view.raw()),
                     .outer_stride = last >= 1 ? view.stride(0) : 0,
                     .inner_stride = last == 2 ? view.stride(1) : 0,
                     .inner = last == 2 ? view.extent(1) : 1};
  const auto whole = [](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(Stored<kType>)) % 16 == 0;
  };
  rows.aligned = reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0 && whole(rows.outer_stride) &&
                 whole(rows.inner_stride);
  return rows;
}
template <DType kType>
RowsOf<kType> one_row_of(const TensorView& view) {
  return {.data = static_cast<Stored<kType>*>(view.raw()),
          .aligned = reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0};
}

// A count of neighbours of which eight are there, aligned: known when the kernel is compiled, so that loads
// stand side by side and none waits behind another one's branch.
struct Whole {};

template <DType kType>
__device__ __forceinline__ Eight load_eight(const Stored<kType>* from, Whole, bool = true) {
  const auto stored = StoredEight<kType>::load(from);
  Eight values;
#pragma unroll
  for (int i = 0; i < kEight; ++i) values.at[i] = stored.wide(i);
  return values;
}

// `count` of eight neighbours, the others 0.
template <DType kType>
__device__ __forceinline__ Eight load_eight(const Stored<kType>* from, std::int64_t count, bool aligned) {
  if (aligned && count >= kEight) return load_eight<kType>(from, Whole{});
  Eight values;
#pragma unroll
  for (int i = 0; i < kEight; ++i) values.at[i] = i < count ? widen<kType>(from[i]) : 0.0F;
  return values;
}

template <DType kType>
__device__ __forceinline__ void store_eight(Stored<kType>* to, Whole, bool, const Eight& values) {
  StoredEight<kType>::of(values.at).store(to);
}

template <DType kType>
__device__ __forceinline__ void store_eight(Stored<kType>* to, std::int64_t count, bool aligned,
                                            const Eight& values) {
  if (aligned && count >= kEight) return store_eight<kType>(to, Whole{}, true, values);
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    if (i < count) to[i] = narrow<kType>(values.at[i]);
  }
}

// The same of what is rounded already.
template <DType kType>
__device__ __forceinline__ void store_bits(Stored<kType>* to, Whole, bool, const StoredEight<kType>& stored) {
  stored.store(to);
}
template <DType kType>
__device__ __forceinline__ void store_bits(Stored<kType>* to, std::int64_t count, bool aligned,
                                           const StoredEight<kType>& stored) {
  if (aligned && count >= kEight) return stored.store(to);
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    if (i < count) to[i] = stored.get(i);
  }
}

// op(row, first column, columns from there) for every eight of [rows, dim].
template <bool kWhole, class Op>
__global__ void __launch_bounds__(kThreads)
    for_eights_kernel(Op op, std::int64_t rows, std::int64_t dim, std::int64_t blocks) {
  const std::int64_t in_row = (dim + kEight - 1) / kEight;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * in_row;
       i += blocks * kThreads) {
    const std::int64_t row = rows == 1 ? 0 : quotient(i, in_row);
    const std::int64_t column = (i - row * in_row) * kEight;
    if constexpr (kWhole) {
      op(row, column, Whole{});
    } else {
      op(row, column, dim - column);
    }
  }
}

// The sum over a block's threads, in the same order every time; thread 0 has it.
template <int kBlock>
__device__ __forceinline__ double sum_block(double value) {
  auto* sums = reinterpret_cast<double*>(shared_memory);
  sums[threadIdx.x] = value;
  for (unsigned half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] = value += sums[threadIdx.x + half];
  }
  return value;
}
constexpr std::int64_t sum_block_bytes(int threads) {
  return threads * static_cast<std::int64_t>(sizeof(double));
}

// Enough blocks to fill the chip ten times over, so that the last ones, which do not fill it, are few beside
// all; their loops take the rest.
inline std::int64_t blocks_for(std::int64_t items, const Stream& stream) {
  return std::min(divide_up(items, kThreads), std::int64_t{stream.device->cores} * 64);
}

// op.aligned(): whether all its rows are.
template <class Op>
void for_eights(const char* name, std::int64_t rows, std::int64_t dim, const Stream& stream, const Op& op) {
  if (rows == 0 || dim == 0) return;
  const std::int64_t blocks = blocks_for(rows * divide_up(dim, kEight), stream);
  const bool whole = op.aligned() && dim % kEight == 0;
  launch(name, whole ? for_eights_kernel<true, Op> : for_eights_kernel<false, Op>, blocks, kThreads, 0,
         stream, op, rows, dim, blocks);
}

}  // namespace headroom::cuda
