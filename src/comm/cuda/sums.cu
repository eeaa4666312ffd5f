// Sums over ranks. Bound by memory.
#include "comm/cuda/messages.h"
#include "cuda/device_code.h"
#include "headroom/core/checked.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {
namespace {

constexpr int kSumThreads = 256;

// What an element is stored as and added in.
struct SumOfFloats {
  using Stored = float;
  using Sum = float;
  static __device__ __forceinline__ Sum widen(Stored value) { return value; }
  static __device__ __forceinline__ Stored narrow(Sum value) { return value; }
};
struct SumOfDoubles {
  using Stored = double;
  using Sum = double;
  static __device__ __forceinline__ Sum widen(Stored value) { return value; }
  static __device__ __forceinline__ Stored narrow(Sum value) { return value; }
};
struct SumOfBfloats {
  using Stored = std::uint16_t;
  using Sum = float;
  static __device__ __forceinline__ Sum widen(Stored value) {
    return bits_to_float(static_cast<std::uint32_t>(value) << 16);
  }
  static __device__ __forceinline__ Stored narrow(Sum value) { return float_to_bfloat(value); }
};

// own <- 0 + part of rank 0 + part of rank 1 + ...; one thread per element
template <class Of>
__global__ void add_in_order_kernel(typename Of::Stored* own, const typename Of::Stored* others,
                                    std::int64_t elements, Ranks ranks) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (i >= elements) return;
  typename Of::Sum sum = 0;
  for (int rank = 0; rank < ranks.count; ++rank) {
    const int before = rank < ranks.rank ? rank : rank - 1;
    sum += Of::widen(rank == ranks.rank ? own[i] : others[before * elements + i]);
  }
  own[i] = Of::narrow(sum);
}

template <class Of>
void launch_sum(const Ranks& ranks, std::span<std::byte> own, const std::byte* others, const Stream& stream) {
  using Stored = typename Of::Stored;
  const std::int64_t elements = std::ssize(own) / static_cast<std::int64_t>(sizeof(Stored));
  launch("add_in_order_kernel", add_in_order_kernel<Of>, divide_up(elements, std::int64_t{kSumThreads}),
         kSumThreads, 0, stream, reinterpret_cast<Stored*>(own.data()),
         reinterpret_cast<const Stored*>(others), elements, ranks);
}

}  // namespace

void add_in_order(DType dtype, const Ranks& ranks, std::span<std::byte> own, const std::byte* others,
                  const Stream& stream) {
  switch (dtype) {
    case DType::f64: return launch_sum<SumOfDoubles>(ranks, own, others, stream);
    case DType::bf16: return launch_sum<SumOfBfloats>(ranks, own, others, stream);
    default: return launch_sum<SumOfFloats>(ranks, own, others, stream);
  }
}

}  // namespace headroom::cuda
