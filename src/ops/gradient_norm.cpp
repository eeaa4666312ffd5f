#include "headroom/ops/gradient_norm.h"

#include <cmath>

#include "headroom/core/elements.h"
#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

constexpr std::int64_t kChunk = 1 << 16;  // elements of one partial sum

struct SumCall {
  TensorView view, result;
  Store store;
};
constexpr OperationRow<SumCall> kSumOfSquares[] = {
    {"cpu", on_cpus,
     [](const SumCall& call, TensorView workspace, const Stream& stream) {
       cpu::sum_of_squares(call.view, call.result, call.store, workspace, stream);
     },
     [](const SumCall& call, const DeviceDescription&) {
       return divide_up(call.view.elements(), kChunk) * size_bytes(DType::f64);
     }},
    {"cuda", on_cuda_gpus,
     [](const SumCall& call, TensorView workspace, const Stream& stream) {
       cuda::sum_of_squares(call.view, call.result, call.store, workspace, stream);
     },
     [](const SumCall&, const DeviceDescription&) { return cuda::kSumBlocks * size_bytes(DType::f64); }}};

struct ClipCall {
  ClipFactor views;
  Clipping clipping;
};
constexpr OperationRow<ClipCall> kClipFactor[] = {
    {"cpu", on_cpus,
     [](const ClipCall& call, TensorView, const Stream&) { cpu::clip_factor(call.views, call.clipping); }},
    {"cuda", on_cuda_gpus, [](const ClipCall& call, TensorView, const Stream& stream) {
       cuda::clip_factor(call.views, call.clipping, stream);
     }}};

void check_sum(const Arguments& arguments, const TensorView& sum, std::string_view what) {
  arguments.shape(sum, {1}, what);
  if (sum.dtype() != DType::f32) arguments.dtype(sum, DType::f64, what);
}

}  // namespace

void sum_of_squares(Context& context, const TensorView& view, const TensorView& result, Store store) {
  const Arguments arguments("sum_of_squares");
  arguments.floating(view, "the view");
  arguments.dense(view, "the view");
  check_sum(arguments, result, "the result");
  run_operation<SumCall>(context, kSumOfSquares, {view, result, store}, moves("gradient norm", {view}));
}

void clip_factor(Context& context, const ClipFactor& views, const Clipping& clipping) {
  const Arguments arguments("clip_factor");
  check_sum(arguments, views.sum_of_squares, "sum_of_squares");
  arguments.vector(views.norm, DType::f32, {1}, "norm");
  arguments.vector(views.factor, DType::f32, {1}, "factor");
  arguments.vector(views.finite, DType::i32, {1}, "finite");
  check(clipping.max_norm > 0, "clip_factor: max_norm is {}; it has to be above 0, infinity clips nothing",
        clipping.max_norm);
  check(clipping.scale > 0 && std::isfinite(clipping.scale),
        "clip_factor: scale is {}; it has to be above 0 and finite", clipping.scale);
  run_operation<ClipCall>(context, kClipFactor, {views, clipping}, moves("clip factor", {}));
}

namespace cpu {
namespace {

// Of `count` elements; those of 16 bits are widened a few at a time.
double squares_of(const OpKernels& kernels, DType dtype, const void* data, std::int64_t count) {
  if (dtype == DType::f32) return kernels.sum_of_squares(static_cast<const float*>(data), count);
  constexpr std::int64_t kWidened = 1024;
  float widened[kWidened];
  double sum = 0;
  for (std::int64_t i = 0; i < count; i += kWidened) {
    const std::int64_t part = std::min(kWidened, count - i);
    kernels.convert(dtype, static_cast<const std::byte*>(data) + i * size_bytes(dtype), DType::f32, widened,
                    part);
    sum += kernels.sum_of_squares(widened, part);
  }
  return sum;
}

}  // namespace

void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  auto* parts = static_cast<double*>(workspace.raw());
  const std::int64_t elements = view.elements();
  const std::int64_t chunks = divide_up(elements, kChunk);
  parallel_for(stream, chunks, [&](std::int64_t item) {
    parts[item] = squares_of(kernels, view.dtype(), at(view, item * kChunk),
                             std::min(kChunk, elements - item * kChunk));
  });
  double sum = store == Store::add ? read_element(result, 0) : 0;
  for (std::int64_t item = 0; item < chunks; ++item) sum += parts[item];
  write_element(result, 0, sum);
}

void clip_factor(const ClipFactor& views, const Clipping& clipping) {
  const double norm = clipping.scale * std::sqrt(read_element(views.sum_of_squares, 0));
  const bool finite = std::isfinite(static_cast<float>(norm));  // as it is stored
  write_element(views.norm, 0, norm);
  const double clipped = std::min(1.0, clipping.max_norm / (norm + 1e-6));
  write_element(views.factor, 0, finite ? clipping.scale * clipped : 0.0);
  *views.finite.data<std::int32_t>() = finite ? 1 : 0;
}

}  // namespace cpu
}  // namespace headroom
