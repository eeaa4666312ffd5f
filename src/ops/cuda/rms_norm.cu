// RMS normalisation: 16 lanes, a warp or a block per row, by its length. Every row is read twice; the second
// time it is in L1.
#include <algorithm>

#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

// Lanes that share a row: kLanes of a block, which has kThreads / kLanes of such groups.
template <int kLanes>
struct Group {
  static constexpr int kGroups = kThreads / kLanes;
  int lane = static_cast<int>(threadIdx.x) % kLanes;
  int index = static_cast<int>(threadIdx.x) / kLanes;

  // The sum over the group's lanes, in the same order every time; the whole block calls it.
  __device__ __forceinline__ float sum(float value, float* shared) const {
#pragma unroll
    for (int step = (kLanes < kWarp ? kLanes : kWarp) / 2; step > 0; step /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    if constexpr (kLanes > kWarp) {
      if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
      __syncthreads();
      value = 0;
#pragma unroll
      for (int warp = 0; warp < kLanes / kWarp; ++warp) value += shared[warp];
      __syncthreads();  // before it is written again
    }
    return value;
  }
};

template <DType kType, DType kWeight>
struct ForwardRows {
  RowsOf<kType> x, y;
  RowsOf<kWeight> weight;
  float* rstd;
  std::int64_t rows;
  std::int64_t dim;
  float epsilon;
};

template <int kLanes, DType kType, DType kWeight>
__global__ void rms_norm_kernel(ForwardRows<kType, kWeight> call) {
  auto* shared = reinterpret_cast<float*>(shared_memory);
  const Group<kLanes> group;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * Group<kLanes>::kGroups + group.index;
  const bool there = row < call.rows;
  const std::int64_t safe = there ? row : 0;
  const Stored<kType>* x = call.x.row(safe);
  Stored<kType>* y = call.y.row(safe);
  float squares = 0;
  for (std::int64_t i = group.lane * kEight; i < call.dim; i += kLanes * kEight) {
    const Eight value = load_eight<kType>(x + i, call.dim - i, call.x.aligned);
#pragma unroll
    for (int j = 0; j < kEight; ++j) squares += value.at[j] * value.at[j];
  }
  const float mean = group.sum(squares, shared) / static_cast<float>(call.dim);
  const float rstd = 1.0F / sqrtf(mean + call.epsilon);
  if (!there) return;
  if (group.lane == 0) call.rstd[row] = rstd;
  for (std::int64_t i = group.lane * kEight; i < call.dim; i += kLanes * kEight) {
    Eight value = load_eight<kType>(x + i, call.dim - i, call.x.aligned);
    const Eight weight = load_eight<kWeight>(call.weight.data + i, call.dim - i, call.weight.aligned);
#pragma unroll
    for (int j = 0; j < kEight; ++j) value.at[j] = value.at[j] * rstd * weight.at[j];
    store_eight<kType>(y + i, call.dim - i, call.y.aligned, value);
  }
}

template <DType kType, DType kWeight>
struct BackwardRows {
  RowsOf<kType> x, y_gradient, x_gradient;
  RowsOf<kWeight> weight;
  const float* rstd;
  std::int64_t rows;
  std::int64_t dim;
  bool add;
  float* parts;            // [blocks, dim]
  std::int64_t blocks;     // each takes every so many-th group of rows
  bool sums_fit;           // in shared memory; otherwise they are in parts
};

// dx of every row; parts <- each block's sum of dy * h
template <int kLanes, DType kType, DType kWeight>
__global__ void rms_norm_backward_kernel(BackwardRows<kType, kWeight> call) {
  constexpr int kGroups = Group<kLanes>::kGroups;
  const Group<kLanes> group;
  auto* shared = reinterpret_cast<float*>(shared_memory);
  float* const part = call.parts + static_cast<std::int64_t>(blockIdx.x) * call.dim;
  float* const sums = call.sums_fit ? shared + kThreads / kWarp + group.index * call.dim : part;
  // Every lane adds to columns of its own.
  for (std::int64_t i = group.lane * kEight; i < call.dim; i += kLanes * kEight) {
    for (std::int64_t j = i; j < i + kEight && j < call.dim; ++j) sums[j] = 0;
  }
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroups; first < call.rows;
       first += call.blocks * kGroups) {
    const std::int64_t row = first + group.index;
    const bool there = row < call.rows;
    const std::int64_t safe = there ? row : first;
    const Stored<kType>* x = call.x.row(safe);
    const Stored<kType>* dy = call.y_gradient.row(safe);
    Stored<kType>* dx = call.x_gradient.row(safe);
    const float rstd = call.rstd[safe];
    // mean <- mean(g * h) with g = dy * weight, h = x * rstd
    float dot = 0;
    for (std::int64_t i = group.lane * kEight; i < call.dim; i += kLanes * kEight) {
      const std::int64_t count = call.dim - i;
      const Eight value = load_eight<kType>(x + i, count, call.x.aligned);
      const Eight gradient = load_eight<kType>(dy + i, count, call.y_gradient.aligned);
      const Eight weight = load_eight<kWeight>(call.weight.data + i, count, call.weight.aligned);
#pragma unroll
      for (int j = 0; j < kEight; ++j) dot += gradient.at[j] * weight.at[j] * (value.at[j] * rstd);
    }
    const float mean = group.sum(dot, shared) / static_cast<float>(call.dim);
    if (!there) continue;  // the others of the block have one more row at most: this is the last turn
    for (std::int64_t i = group.lane * kEight; i < call.dim; i += kLanes * kEight) {
      const std::int64_t count = call.dim - i;
      const Eight value = load_eight<kType>(x + i, count, call.x.aligned);
      const Eight gradient = load_eight<kType>(dy + i, count, call.y_gradient.aligned);
      const Eight weight = load_eight<kWeight>(call.weight.data + i, count, call.weight.aligned);
      Eight result{};
      if (call.add) result = load_eight<kType>(dx + i, count, call.x_gradient.aligned);
#pragma unroll
      for (int j = 0; j < kEight; ++j) {
        const float h = value.at[j] * rstd;
        if (j < count) sums[i + j] += gradient.at[j] * h;
        result.at[j] += rstd * (gradient.at[j] * weight.at[j] - h * mean);
      }
      store_eight<kType>(dx + i, count, call.x_gradient.aligned, result);
    }
  }
  if (!call.sums_fit) return;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < call.dim; i += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += shared[kThreads / kWarp + g * call.dim + i];
    part[i] = sum;
  }
}

// dweight <- dweight + the parts; a warp's lanes have a column each, its warps every so many-th part
__global__ void add_parts_kernel(const float* parts, std::int64_t count, std::int64_t dim, float* sums) {
  auto* shared = reinterpret_cast<float*>(shared_memory);
  constexpr int kWarps = kThreads / kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  float sum = 0;
  if (column < dim) {
    for (std::int64_t part = threadIdx.x / kWarp; part < count; part += kWarps) {
      sum += parts[part * dim + column];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= dim) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp * kWarp + threadIdx.x];
  sums[column] += sum;
}

// body.operator()<lanes>() for rows of so many elements
template <class Body>
void with_lanes(std::int64_t dim, const Body& body) {
  if (dim <= 16 * kEight) return body.template operator()<16>();
  if (dim <= 4 * kWarp * kEight) return body.template operator()<kWarp>();
  return body.template operator()<kThreads>();
}

}  // namespace

void rms_norm_forward(const RmsNormForward& views, float epsilon, const Stream& stream) {
  const std::int64_t dim = views.weight.extent(0);
  with_dtype(views.x.dtype(), [&]<DType kType>() {
    with_dtype(views.weight.dtype(), [&]<DType kWeight>() {
      const ForwardRows<kType, kWeight> call{.x = rows_of<kType>(views.x),
                                             .y = rows_of<kType>(views.y),
                                             .weight = one_row_of<kWeight>(views.weight),
                                             .rstd = views.rstd.data<float>(),
                                             .rows = views.rstd.elements(),
                                             .dim = dim,
                                             .epsilon = epsilon};
      with_lanes(dim, [&]<int kLanes>() {
        launch("rms_norm_kernel", rms_norm_kernel<kLanes, kType, kWeight>,
               divide_up(call.rows, Group<kLanes>::kGroups), kThreads, kThreads / kWarp * kFloat, stream, call);
      });
    });
  });
}

void rms_norm_backward(const RmsNormBackward& views, Store x_gradient, const TensorView& workspace,
                       const Stream& stream) {
  const std::int64_t dim = views.weight.extent(0);
  const std::int64_t rows = views.rstd.elements();
  if (rows == 0) return;
  auto* parts = static_cast<float*>(workspace.raw());
  std::int64_t blocks = 0;
  with_dtype(views.x.dtype(), [&]<DType kType>() {
    with_dtype(views.weight.dtype(), [&]<DType kWeight>() {
      with_lanes(dim, [&]<int kLanes>() {
        constexpr std::int64_t kMostShared = 48 << 10;  // that every GPU has
        constexpr int kGroups = Group<kLanes>::kGroups;
        const std::int64_t sums_bytes =
            (kThreads / kWarp + kGroups * dim) * kFloat;
        blocks = std::min(divide_up(rows, kGroups), rms_norm_parts(*stream.device));
        const BackwardRows<kType, kWeight> call{.x = rows_of<kType>(views.x),
                                                .y_gradient = rows_of<kType>(views.y_gradient),
                                                .x_gradient = rows_of<kType>(views.x_gradient),
                                                .weight = one_row_of<kWeight>(views.weight),
                                                .rstd = views.rstd.data<float>(),
                                                .rows = rows,
                                                .dim = dim,
                                                .add = x_gradient == Store::add,
                                                .parts = parts,
                                                .blocks = blocks,
                                                .sums_fit = sums_bytes <= kMostShared};
        launch("rms_norm_backward_kernel", rms_norm_backward_kernel<kLanes, kType, kWeight>, blocks, kThreads,
               call.sums_fit ? sums_bytes : kThreads / kWarp * kFloat, stream, call);
      });
    });
  });
  launch("add_parts_kernel", add_parts_kernel, divide_up(dim, kWarp), kThreads, kThreads * kFloat, stream,
         static_cast<const float*>(parts), blocks, dim, views.weight_gradient.data<float>());
}

}  // namespace headroom::cuda
