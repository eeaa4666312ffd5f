// RMS normalisation: a block per row, whose threads hold their share of it in registers, so that rows are
// read once. Threads have several eights each: what a row costs every thread, the sum over the block most of
// all, is then little beside its elements.
#include <algorithm>

#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/parts.h"

namespace headroom::cuda {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarp;
constexpr int kForwardVectors = 5;  // two warps have a row of 2,560
static_assert(kMostThreads * kForwardVectors * kEight >= kMostNormElements);

// How backward is compiled: the eights of a thread, the rows that a block has at once, the most threads of a
// block, and how many such blocks a multiprocessor's registers are to hold.
template <int kVectorsOfThread, int kRowsOfBlock, int kThreadsOfBlock, int kBlocksTogether>
struct BackwardShape {
  static constexpr int kVectors = kVectorsOfThread;
  template <DType kType>
  static constexpr int kRows = sizeof(Stored<kType>) == 2 ? kRowsOfBlock : 1;
  static constexpr int kThreads = kThreadsOfBlock;
  static constexpr int kBlocks = kBlocksTogether;
  static constexpr std::int64_t kWidest = std::int64_t{kVectors} * kEight * kThreads;
};
using ShortRows = BackwardShape<2, 4, 192, 2>;
using LongRows = BackwardShape<4, 1, 512, 1>;
using LongestRows = BackwardShape<8, 1, 512, 1>;
static_assert(LongestRows::kWidest == kMostNormElements);

// The sums over a block's threads, in the same order every time. Turns use two places in turn, so that one
// barrier is enough: who writes a place again has seen all others behind their reading of it.
template <int kCount>
__device__ __forceinline__ void sum_threads(float (&values)[kCount], int threads, int turn) {
  float* const sums = reinterpret_cast<float*>(shared_memory) + turn % 2 * kMostWarps * kCount;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
#pragma unroll
    for (float& value : values) value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[threadIdx.x / kWarp * kCount + i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = sums[i];
  for (int warp = 1; warp < threads / kWarp; ++warp) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += sums[warp * kCount + i];
  }
}
constexpr std::int64_t sum_threads_bytes(int count) {
  return kFloat * 2 * kMostWarps * count;
}

// A thread's share of a row: kVectors times eight neighbours, a block's width apart. kWhole: rows are
// aligned, end with an eight and lie at one distance from each other.
template <int kVectors, bool kWhole>
struct Share {
  int threads;
  int dim;

  __device__ __forceinline__ int column(int v) const {
    return (v * threads + static_cast<int>(threadIdx.x)) * kEight;
  }
  // As it is stored: what is not used yet takes half the registers.
  template <DType kType>
  struct Raw {
    StoredEight<kType> eights[kVectors] = {};

    __device__ __forceinline__ void stay_narrow() {
#pragma unroll
      for (StoredEight<kType>& eight : eights) eight.stay_narrow();
    }
  };
  template <DType kType>
  __device__ __forceinline__ StoredEight<kType> load_one(const Stored<kType>* row, int v) const {
    StoredEight<kType> eight{};
    if constexpr (kWhole) {
      if (column(v) < dim) eight = StoredEight<kType>::load(row + column(v));
    } else {
#pragma unroll
      for (int j = 0; j < kEight; ++j) {
        if (column(v) + j < dim) eight.set(j, row[column(v) + j]);
      }
    }
    return eight;
  }
  template <DType kType>
  __device__ __forceinline__ Raw<kType> load(const Stored<kType>* row) const {
    Raw<kType> raw;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) raw.eights[v] = load_one<kType>(row, v);
    return raw;
  }
  template <DType kType>
  __device__ __forceinline__ void store_one(Stored<kType>* row, int v, const Eight& values) const {
    if (column(v) >= dim) return;
    if constexpr (kWhole) {
      store_eight<kType>(row + column(v), Whole{}, true, values);
    } else {
      store_eight<kType>(row + column(v), dim - column(v), false, values);
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
  float part_of_row = 0;  // 1 / dim
  float epsilon = 0;
  bool add = false;         // to the gradient of x
  float* parts = nullptr;   // [blocks, dim], of the gradient of the weight
  std::int64_t blocks = 0;  // each has every so many-th group of rows
  int threads = 0;

  // Whether kernels that are compiled for whole rows can be launched.
  [[nodiscard]] bool whole(bool weight_aligned) const {
    return x.aligned && y.aligned && (gradient.data == nullptr || gradient.aligned) && weight_aligned &&
           dim % kEight == 0 && x.inner == 1;
  }
  template <bool kWhole>
  __device__ __forceinline__ RowPlace place(std::int64_t row) const {
    return kWhole ? RowPlace{row, 0} : x.place(row);
  }
};

// A block has one row: those that wait for theirs, ten and more on a multiprocessor, keep memory busy.
template <bool kWhole, DType kType, DType kWeight>
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(NormCall<kType, kWeight> call) {
  const Share<kForwardVectors, kWhole> share{call.threads, static_cast<int>(call.dim)};
  const RowPlace place = call.template place<kWhole>(blockIdx.x);
  auto x = share.template load<kType>(call.x.at(place));
  float squares[] = {0};
#pragma unroll
  for (int v = 0; v < kForwardVectors; ++v) {
#pragma unroll
    for (int j = 0; j < kEight; ++j) squares[0] += x.eights[v].wide(j) * x.eights[v].wide(j);
  }
  sum_threads(squares, call.threads, 0);
  x.stay_narrow();
  const float rstd = 1.0F / sqrtf(squares[0] * call.part_of_row + call.epsilon);
  if (threadIdx.x == 0) call.rstd[blockIdx.x] = rstd;
  Stored<kType>* const to = call.y.at(place);
#pragma unroll
  for (int v = 0; v < kForwardVectors; ++v) {
    const auto weight = share.template load_one<kWeight>(call.weight, v);
    Eight y;
#pragma unroll
    for (int j = 0; j < kEight; ++j) y.at[j] = x.eights[v].wide(j) * rstd * weight.wide(j);
    share.template store_one<kType>(to, v, y);
  }
}

// dx of every row; parts <- each block's sum of dy * h. With g = dy * weight, h = x * rstd. A row's registers
// have the loads of a later one as soon as it is done with.
template <class Shape, bool kWhole, DType kType, DType kWeight>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    rms_norm_backward_kernel(NormCall<kType, kWeight> call) {
  constexpr int kVectors = Shape::kVectors;
  constexpr int kRows = Shape::template kRows<kType>;
  const Share<kVectors, kWhole> share{call.threads, static_cast<int>(call.dim)};
  Eight sums[kVectors] = {};
  struct Row {
    typename Share<kVectors, kWhole>::template Raw<kType> x, gradient, before;
    float rstd = 0;
  };
  Row rows[kRows];
  const auto load = [&](Row& to, std::int64_t row) {
    if (row >= call.rows) return;
    const RowPlace place = call.template place<kWhole>(row);
    to.x = share.template load<kType>(call.x.at(place));
    to.gradient = share.template load<kType>(call.y.at(place));
    if (call.add) to.before = share.template load<kType>(call.gradient.at(place));
    to.rstd = call.rstd[row];
  };
  std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows;
#pragma unroll
  for (int r = 0; r < kRows; ++r) load(rows[r], first + r);
  for (int turn = 0; first < call.rows; ++turn) {
    // The weight is in L1 and is read when it is used: sums and rows leave it no registers.
    auto weight = share.template load<kWeight>(call.weight);
    float dots[kRows] = {};  // g x
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int j = 0; j < kEight; ++j) {
          dots[r] +=
              rows[r].gradient.eights[v].wide(j) * weight.eights[v].wide(j) * rows[r].x.eights[v].wide(j);
        }
      }
    }
    sum_threads(dots, call.threads, turn);
    weight = share.template load<kWeight>(call.weight);
#pragma unroll
    for (Row& row : rows) {
      row.x.stay_narrow();
      row.gradient.stay_narrow();
    }
    const std::int64_t next = first + call.blocks * kRows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= call.rows) break;
      Stored<kType>* const to = call.gradient.at(call.template place<kWhole>(first + r));
      const float rstd = rows[r].rstd;
      const float mean = dots[r] * rstd * call.part_of_row;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Eight result;
#pragma unroll
        for (int j = 0; j < kEight; ++j) {
          const float h = rows[r].x.eights[v].wide(j) * rstd;
          const float dy = rows[r].gradient.eights[v].wide(j);
          sums[v].at[j] += dy * h;
          result.at[j] = rows[r].before.eights[v].wide(j) + rstd * (dy * weight.eights[v].wide(j) - h * mean);
        }
        share.template store_one<kType>(to, v, result);
      }
      load(rows[r], next + r);
    }
    first = next;
  }
  float* const part = call.parts + static_cast<std::int64_t>(blockIdx.x) * call.dim;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) share.template store_one<DType::f32>(part, v, sums[v]);
}

// A warp's lanes have a column each, its warps every so many-th part. Loads stand side by side: each would
// wait as long as all of them.
__global__ void __launch_bounds__(kMostThreads)
    add_parts_kernel(const float* parts, std::int64_t count, std::int64_t dim, void* sums, DType dtype) {
  constexpr int kTogether = 8;
  auto* shared = reinterpret_cast<float*>(shared_memory);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const bool adds = threadIdx.x < kWarp && column < dim;
  const float before = adds ? load_element(sums, dtype, column) : 0.0F;
  float sum = 0;
  for (std::int64_t first = threadIdx.x / kWarp; first < count; first += kTogether * kMostWarps) {
    float values[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t part = first + i * kMostWarps;
      values[i] = part < count && column < dim ? parts[part * dim + column] : 0.0F;
    }
#pragma unroll
    for (const float value : values) sum += value;
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (!adds) return;
  for (int warp = 1; warp < kMostWarps; ++warp) sum += shared[warp * kWarp + threadIdx.x];
  store_element(sums, dtype, column, before + sum);
}

// body.operator()<shape>() for rows of so many elements
template <class Body>
void with_shape(std::int64_t dim, const Body& body) {
  if (dim <= ShortRows::kWidest) return body.template operator()<ShortRows>();
  if (dim <= LongRows::kWidest) return body.template operator()<LongRows>();
  body.template operator()<LongestRows>();
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
    const NormCall<kType, kWeight> call{.x = rows_of<kType>(views.x),
                                        .y = rows_of<kType>(views.y),
                                        .weight = weight.data,
                                        .rstd = views.rstd.data<float>(),
                                        .rows = views.rstd.elements(),
                                        .dim = dim,
                                        .part_of_row = 1.0F / static_cast<float>(dim),
                                        .epsilon = epsilon,
                                        .threads = threads_for(dim, kForwardVectors)};
    const bool whole = call.whole(weight.aligned);
    launch("rms_norm_kernel",
           whole ? rms_norm_kernel<true, kType, kWeight> : rms_norm_kernel<false, kType, kWeight>, call.rows,
           call.threads, sum_threads_bytes(1), stream, call);
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
                                  .part_of_row = 1.0F / static_cast<float>(dim),
                                  .add = x_gradient == Store::add,
                                  .parts = parts};
    const bool whole = call.whole(weight.aligned);
    with_shape(dim, [&]<class Shape>() {
      call.threads = threads_for(dim, Shape::kVectors);
      // All at once: a block that waits for another to end would begin late with its many rows.
      const std::int64_t together =
          std::clamp<std::int64_t>(Shape::kThreads * Shape::kBlocks / call.threads, 1, kMostParts);
      constexpr int kRows = Shape::template kRows<kType>;
      call.blocks = std::min(divide_up(rows, kRows), stream.device->cores * together);
      launch("rms_norm_backward_kernel",
             whole ? rms_norm_backward_kernel<Shape, true, kType, kWeight>
                   : rms_norm_backward_kernel<Shape, false, kType, kWeight>,
             call.blocks, call.threads, sum_threads_bytes(kRows), stream, call);
    });
    add_parts(parts, call.blocks, views.weight_gradient, stream);
  });
}

}  // namespace headroom::cuda
