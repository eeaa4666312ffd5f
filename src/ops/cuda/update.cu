// The norm of the gradients, the factor that clips them, and AdamW's update. The factor stays in device
// memory: the host decides nothing.
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

// parts <- the sum of squares of each block's share. In double: a square of f32 neither overflows nor loses a
// bit.
__global__ void squares_kernel(RowsOf<DType::f32> from, std::int64_t elements, double* parts) {
  double sum = 0;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEight;
       i < elements; i += kSumBlocks * kThreads * kEight) {
    const Eight values = load_eight<DType::f32>(from.data + i, elements - i, from.aligned);
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      const auto value = static_cast<double>(values.at[j]);
      sum += value * value;
    }
  }
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

struct Scalar {
  void* data;
  bool f64;
  __device__ __forceinline__ double read() const {
    return f64 ? *static_cast<double*>(data) : static_cast<double>(*static_cast<float*>(data));
  }
  __device__ __forceinline__ void write(double value) const {
    if (f64) {
      *static_cast<double*>(data) = value;
    } else {
      *static_cast<float*>(data) = static_cast<float>(value);
    }
  }
};
Scalar scalar_of(const TensorView& view) {
  return {view.raw(), view.dtype() == DType::f64};
}

// result <- [result +] the parts; one block
__global__ void sum_parts_kernel(const double* parts, Scalar result, bool add) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < kSumBlocks; i += kThreads) sum += parts[i];
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) result.write(add ? result.read() + sum : sum);
}

struct ClipCall {
  Scalar squares;
  float* norm;
  float* factor;
  std::int32_t* finite;
  Clipping clipping;
};

// One thread.
__global__ void clip_factor_kernel(ClipCall call) {
  if (threadIdx.x != 0) return;
  const double norm = call.clipping.scale * sqrt(call.squares.read());
  const auto stored = static_cast<float>(norm);
  const bool finite = stored - stored == 0.0F;
  const double fits = call.clipping.max_norm / (norm + 1e-6);
  *call.norm = stored;
  *call.factor = finite ? static_cast<float>(call.clipping.scale * (fits < 1 ? fits : 1.0)) : 0.0F;
  *call.finite = finite ? 1 : 0;
}

template <DType kWeight>
struct Update {
  AdamWFactors factors;
  RowsOf<DType::f32> master, gradient, first, second;
  RowsOf<kWeight> weight;  // null: the master is the weight
  const float* factor;
  [[nodiscard]] bool aligned() const {
    return master.aligned && gradient.aligned && first.aligned && second.aligned &&
           (weight.data == nullptr || weight.aligned);
  }
  template <class Count>
  __device__ void operator()(std::int64_t, std::int64_t column, Count count) const {
    const float scale = *factor;
    if (!(scale > 0)) return;
    Eight m = load_eight<DType::f32>(master.data + column, count, master.aligned);
    const Eight g = load_eight<DType::f32>(gradient.data + column, count, gradient.aligned);
    Eight moment = load_eight<DType::f32>(first.data + column, count, first.aligned);
    Eight square = load_eight<DType::f32>(second.data + column, count, second.aligned);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float scaled = g.at[i] * scale;
      moment.at[i] = factors.beta1 * moment.at[i] + factors.one_minus_beta1 * scaled;
      square.at[i] = factors.beta2 * square.at[i] + factors.one_minus_beta2 * (scaled * scaled);
      const float divisor = sqrtf(square.at[i]) * factors.inverse_root_bias + factors.epsilon;
      m.at[i] = m.at[i] * factors.decay - factors.step_size * (moment.at[i] / divisor);
    }
    store_eight<DType::f32>(first.data + column, count, first.aligned, moment);
    store_eight<DType::f32>(second.data + column, count, second.aligned, square);
    store_eight<DType::f32>(master.data + column, count, master.aligned, m);
    if (weight.data != nullptr) store_eight<kWeight>(weight.data + column, count, weight.aligned, m);
  }
};

}  // namespace

void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream) {
  auto* parts = static_cast<double*>(workspace.raw());
  launch("squares_kernel", squares_kernel, kSumBlocks, kThreads, sum_block_bytes(kThreads), stream,
         one_row_of<DType::f32>(view), view.elements(), parts);
  launch("sum_parts_kernel", sum_parts_kernel, 1, kThreads, sum_block_bytes(kThreads), stream,
         static_cast<const double*>(parts), scalar_of(result), store == Store::add);
}

void clip_factor(const ClipFactor& views, const Clipping& clipping, const Stream& stream) {
  launch("clip_factor_kernel", clip_factor_kernel, 1, 32, 0, stream,
         ClipCall{.squares = scalar_of(views.sum_of_squares),
                  .norm = views.norm.data<float>(),
                  .factor = views.factor.data<float>(),
                  .finite = views.finite.data<std::int32_t>(),
                  .clipping = clipping});
}

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream) {
  const bool copied = views.weight.raw() != views.master.raw();
  with_dtype(views.weight.dtype(), [&]<DType kWeight>() {
    for_eights("adamw_kernel", 1, views.master.elements(), stream,
               Update<kWeight>{.factors = factors,
                               .master = one_row_of<DType::f32>(views.master),
                               .gradient = one_row_of<DType::f32>(views.gradient),
                               .first = one_row_of<DType::f32>(views.first),
                               .second = one_row_of<DType::f32>(views.second),
                               .weight = copied ? one_row_of<kWeight>(views.weight) : RowsOf<kWeight>{},
                               .factor = views.factor.data<float>()});
  });
}

}  // namespace headroom::cuda
