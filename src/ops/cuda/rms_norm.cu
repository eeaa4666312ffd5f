// RMS normalisation: a block per row, whose threads hold their share of it in registers, so that rows are
// read once. The next row is on its way while one is summed.
#include <algorithm>

#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/parts.h"

namespace headroom::cuda {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr int kMostThreads = 512;
constexpr int kMostVectors = 8;
constexpr int kMostWarps = kMostThreads / kWarp;

// Threads of backward that an SM has at once: with one eight each they have 64 registers, with more 128.
constexpr int threads_together(int vectors) {
  return vectors == 1 ? 1024 : 512;
}

// The sum over a block's threads, in the same order every time. Turns use two places in turn, so that one
// barrier is enough: who writes a place again has seen all others behind their reading of it.
__device__ __forceinline__ float sum_threads(float value, int threads, int turn) {
  float* const sums = reinterpret_cast<float*>(shared_memory) + turn % 2 * kMostWarps;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < threads / kWarp; ++warp) value += sums[warp];
  return value;
}

// A thread's share of a row: kVectors times eight neighbours, a block's width apart. kWhole: rows are aligned
// and end with an eight.
template <int kVectors, bool kWhole>
struct Share {
  int threads;
  std::int64_t dim;

  __device__ __forceinline__ std::int64_t column(int v) const {
    return (static_cast<std::int64_t>(v) * threads + threadIdx.x) * kEight;
  }
  // As it is stored: what is not used yet takes half the registers.
  template <DType kType>
  struct Raw {
    StoredEight<kType> eights[kVectors] = {};

    __device__ __forceinline__ void widen_to(Eight (&values)[kVectors]) const {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int j = 0; j < kEight; ++j) values[v].at[j] = eights[v].wide(j);
      }
    }
  };
  template <DType kType>
  __device__ __forceinline__ Raw<kType> load(const Stored<kType>* row) const {
    Raw<kType> raw;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= dim) continue;
      if constexpr (kWhole) {
        raw.eights[v] = StoredEight<kType>::load(row + column(v));
      } else {
#pragma unroll
        for (int j = 0; j < kEight; ++j) {
          if (column(v) + j < dim) raw.eights[v].set(j, row[column(v) + j]);
        }
      }
    }
    return raw;
  }
  template <DType kType>
  __device__ __forceinline__ void store(Stored<kType>* row, const Eight (&values)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= dim) continue;
      if constexpr (kWhole) {
        store_eight<kType>(row + column(v), Whole{}, true, values[v]);
      } else {
        store_eight<kType>(row + column(v), dim - column(v), false, values[v]);
      }
    }
  }
};

template <DType kType, DType kWeight>
struct NormCall {
  RowsOf<kType> x;
  RowsOf<kType> y;           // forward's result; of backward: its gradient
  RowsOf<kType> gradient{};  // of x
  const Stored<kWeight>* weight = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  float epsilon = 0;
  bool add = false;         // to the gradient of x
  float* parts = nullptr;   // [blocks, dim], of the gradient of the weight
  std::int64_t blocks = 0;  // each takes every so many-th row
  int threads = 0;
};

template <int kVectors, bool kWhole, DType kType, DType kWeight>
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(NormCall<kType, kWeight> call) {
  const Share<kVectors, kWhole> share{call.threads, call.dim};
  Eight weight[kVectors];
  share.template load<kWeight>(call.weight).widen_to(weight);
  int turn = 0;
  auto next = share.template load<kType>(call.x.row(blockIdx.x));
  for (std::int64_t row = blockIdx.x; row < call.rows; row += call.blocks) {
    Eight values[kVectors];
    next.widen_to(values);
    if (row + call.blocks < call.rows) next = share.template load<kType>(call.x.row(row + call.blocks));
    float squares = 0;
#pragma unroll
    for (const Eight& eight : values) {
#pragma unroll
      for (const float value : eight.at) squares += value * value;
    }
    const float mean = sum_threads(squares, call.threads, turn++) / static_cast<float>(call.dim);
    const float rstd = 1.0F / sqrtf(mean + call.epsilon);
    if (threadIdx.x == 0) call.rstd[row] = rstd;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < kEight; ++j) values[v].at[j] = values[v].at[j] * rstd * weight[v].at[j];
    }
    share.template store<kType>(call.y.row(row), values);
  }
}

// dx of every row; parts <- each block's sum of dy * h. With g = dy * weight, h = x * rstd.
template <int kVectors, bool kWhole, DType kType, DType kWeight>
__global__ void __launch_bounds__(kMostThreads, threads_together(kVectors) / kMostThreads)
    rms_norm_backward_kernel(NormCall<kType, kWeight> call) {
  const Share<kVectors, kWhole> share{call.threads, call.dim};
  Eight weight[kVectors];
  share.template load<kWeight>(call.weight).widen_to(weight);
  Eight sums[kVectors] = {};
  int turn = 0;
  typename Share<kVectors, kWhole>::template Raw<kType> next_x, next_gradient, next_before;
  float next_rstd = 0;
  const auto load = [&](std::int64_t row) {
    next_x = share.template load<kType>(call.x.row(row));
    next_gradient = share.template load<kType>(call.y.row(row));
    if (call.add) next_before = share.template load<kType>(call.gradient.row(row));
    next_rstd = call.rstd[row];
  };
  load(blockIdx.x);
  for (std::int64_t row = blockIdx.x; row < call.rows; row += call.blocks) {
    const auto x = next_x;
    const auto gradient = next_gradient;
    const auto before = next_before;
    const float rstd = next_rstd;
    if (row + call.blocks < call.rows) load(row + call.blocks);
    float dot = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < kEight; ++j) {
        dot += gradient.eights[v].wide(j) * weight[v].at[j] * (x.eights[v].wide(j) * rstd);
      }
    }
    const float mean = sum_threads(dot, call.threads, turn++) / static_cast<float>(call.dim);
    Eight result[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < kEight; ++j) {
        const float h = x.eights[v].wide(j) * rstd;
        const float g = gradient.eights[v].wide(j);
        sums[v].at[j] += g * h;
        result[v].at[j] = before.eights[v].wide(j) + rstd * (g * weight[v].at[j] - h * mean);
      }
    }
    share.template store<kType>(call.gradient.row(row), result);
  }
  share.template store<DType::f32>(call.parts + static_cast<std::int64_t>(blockIdx.x) * call.dim, sums);
}

// A warp's lanes have a column each, its warps every so many-th part.
__global__ void __launch_bounds__(kMostThreads)
    add_parts_kernel(const float* parts, std::int64_t count, std::int64_t dim, void* sums, DType dtype) {
  auto* shared = reinterpret_cast<float*>(shared_memory);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  float sum = 0;
  if (column < dim) {
#pragma unroll 8
    for (std::int64_t part = threadIdx.x / kWarp; part < count; part += kMostWarps) {
      sum += parts[part * dim + column];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= dim) return;
  for (int warp = 1; warp < kMostWarps; ++warp) sum += shared[warp * kWarp + threadIdx.x];
  store_element(sums, dtype, column, load_element(sums, dtype, column) + sum);
}

// body.operator()<vectors, whole>() for rows of so many elements
template <class Body>
void with_share(std::int64_t dim, bool whole, const Body& body) {
  const auto with_whole = [&]<int kVectors>() {
    whole ? body.template operator()<kVectors, true>() : body.template operator()<kVectors, false>();
  };
  constexpr std::int64_t kWidest = kMostThreads * kEight;
  static_assert(kMostVectors * kWidest == kMostNormElements);
  if (dim <= kWidest) return with_whole.template operator()<1>();
  if (dim <= 2 * kWidest) return with_whole.template operator()<2>();
  with_whole.template operator()<kMostVectors>();
}

int threads_for(std::int64_t dim, int vectors) {
  return static_cast<int>(round_up(divide_up(dim, vectors * kEight), kWarp));
}

}  // namespace

void add_parts(const float* parts, std::int64_t count, const TensorView& sums, const Stream& stream) {
  launch("add_parts_kernel", add_parts_kernel, divide_up(sums.elements(), kWarp), kMostThreads,
         kMostThreads * kFloat, stream, parts, count, sums.elements(), sums.raw(), sums.dtype());
}

void rms_norm_forward(const RmsNormForward& views, float epsilon, const Stream& stream) {
  const std::int64_t dim = views.weight.extent(0);
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    const RowsOf<kWeight> weight = one_row_of<kWeight>(views.weight);
    NormCall<kType, kWeight> call{.x = rows_of<kType>(views.x),
                                  .y = rows_of<kType>(views.y),
                                  .weight = weight.data,
                                  .rstd = views.rstd.data<float>(),
                                  .rows = views.rstd.elements(),
                                  .dim = dim,
                                  .epsilon = epsilon};
    with_share(dim, call.x.aligned && call.y.aligned && weight.aligned && dim % kEight == 0,
               [&]<int kVectors, bool kWhole>() {
                 call.threads = threads_for(dim, kVectors);
                 call.blocks = std::min(call.rows, rms_norm_parts(*stream.device));
                 launch("rms_norm_kernel", rms_norm_kernel<kVectors, kWhole, kType, kWeight>, call.blocks,
                        call.threads, 2 * kMostWarps * kFloat, stream, call);
               });
  });
}

void rms_norm_backward(const RmsNormBackward& views, Store x_gradient, const TensorView& workspace,
                       const Stream& stream) {
  const std::int64_t dim = views.weight.extent(0);
  const std::int64_t rows = views.rstd.elements();
  if (rows == 0) return;
  auto* parts = static_cast<float*>(workspace.raw());
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    const RowsOf<kWeight> weight = one_row_of<kWeight>(views.weight);
    NormCall<kType, kWeight> call{.x = rows_of<kType>(views.x),
                                  .y = rows_of<kType>(views.y_gradient),
                                  .gradient = rows_of<kType>(views.x_gradient),
                                  .weight = weight.data,
                                  .rstd = views.rstd.data<float>(),
                                  .rows = rows,
                                  .dim = dim,
                                  .add = x_gradient == Store::add,
                                  .parts = parts};
    const bool whole =
        call.x.aligned && call.y.aligned && call.gradient.aligned && weight.aligned && dim % kEight == 0;
    with_share(dim, whole, [&]<int kVectors, bool kWhole>() {
      call.threads = threads_for(dim, kVectors);
      // All at once: a block that waits for another to end would begin late with its many rows.
      const std::int64_t together =
          std::clamp<std::int64_t>(threads_together(kVectors) / call.threads, 1, kMostParts);
      call.blocks = std::min(rows, stream.device->cores * together);
      launch("rms_norm_backward_kernel", rms_norm_backward_kernel<kVectors, kWhole, kType, kWeight>,
             call.blocks, call.threads, 2 * kMostWarps * kFloat, stream, call);
      add_parts(parts, call.blocks, views.weight_gradient, stream);
    });
  });
}

}  // namespace headroom::cuda
