#include "headroom/ops/rms_norm.h"

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/rope.h"
#include "ops/work.h"

namespace headroom {
namespace {

// Chunks of rows whose parts of the weight's gradient are summed in order: enough for any number of cores,
// few enough that the parts are small beside the rows.
constexpr std::int64_t kMaxChunks = 128;
constexpr std::int64_t kMinChunkRows = 16;
constexpr std::int64_t kColumns = 512;  // of the weight's gradient, per work item of the last sum

std::int64_t dim_of(const Shape& x) {
  return x[x.rank() - 1];
}
std::int64_t rows_of(const Shape& x) {
  return x.rank() == 3 ? x[0] * x[1] : x[0];
}
std::int64_t chunk_rows(std::int64_t rows) {
  return std::max(kMinChunkRows, divide_up(rows, kMaxChunks));
}

Shape statistics_shape(const Shape& x) {
  return x.rank() == 3 ? Shape{x[0], x[1]} : Shape{x[0]};
}

void check_inputs(const Arguments& arguments, const TensorView& x, const TensorView& weight,
                  const TensorView& rstd) {
  arguments.floating(x, "x");
  arguments.rank(x, 2, 3, "x");
  arguments.rows(x, "x");
  check(dim_of(x.shape()) >= 1, "rms_norm: x of shape {} has rows of no elements", x.shape());
  arguments.shape(weight, {dim_of(x.shape())}, "weight");
  arguments.dense(weight, "weight");
  if (weight.dtype() != DType::f32) arguments.dtype(weight, x.dtype(), "weight");
  arguments.vector(rstd, DType::f32, statistics_shape(x.shape()), "rstd");
}

void check_like_x(const Arguments& arguments, const TensorView& view, const TensorView& x,
                  std::string_view what) {
  arguments.dtype(view, x.dtype(), what);
  arguments.shape(view, x.shape(), what);
}

// A block holds a row in its registers.
template <class Call>
Support on_gpus_that_hold_a_row(const Call& call, const DeviceDescription& device) {
  if (Support support = on_cuda_gpus(call, device); !support) return support;
  const std::int64_t dim = dim_of(call.views.x.shape());
  if (dim <= cuda::kMostNormElements) return Support::yes();
  return Support::no(
      fmt::format("norms rows of up to {} elements, these have {}", cuda::kMostNormElements, dim));
}

struct ForwardCall {
  RmsNormForward views;
  float epsilon;
};
constexpr OperationRow<ForwardCall> kForward[] = {
    {"cpu", on_cpus,
     [](const ForwardCall& call, TensorView, const Stream& stream) {
       cpu::rms_norm_forward(call.views, call.epsilon, stream);
     }},
    {"cuda", on_gpus_that_hold_a_row<ForwardCall>,
     [](const ForwardCall& call, TensorView, const Stream& stream) {
       cuda::rms_norm_forward(call.views, call.epsilon, stream);
     }}};

struct BackwardCall {
  RmsNormBackward views;
  Store x_gradient;
};
// Parts of the weight's gradient, [chunks, dim] f32.
std::int64_t cpu_parts_bytes(const BackwardCall& call, const DeviceDescription&) {
  const std::int64_t rows = rows_of(call.views.x.shape());
  return dense_bytes(DType::f32, {divide_up(rows, chunk_rows(rows)), dim_of(call.views.x.shape())});
}
std::int64_t cuda_parts_bytes(const BackwardCall& call, const DeviceDescription& device) {
  return dense_bytes(DType::f32, {cuda::rms_norm_parts(device), dim_of(call.views.x.shape())});
}
constexpr OperationRow<BackwardCall> kBackward[] = {
    {"cpu", on_cpus,
     [](const BackwardCall& call, TensorView workspace, const Stream& stream) {
       cpu::rms_norm_backward(call.views, call.x_gradient, workspace, stream);
     },
     cpu_parts_bytes},
    {"cuda", on_gpus_that_hold_a_row<BackwardCall>,
     [](const BackwardCall& call, TensorView workspace, const Stream& stream) {
       cuda::rms_norm_backward(call.views, call.x_gradient, workspace, stream);
     },
     cuda_parts_bytes}};

struct HeadsForwardCall {
  RmsNormForward views;
  float epsilon;
  const RopeCall& rope;
};
constexpr OperationRow<HeadsForwardCall> kHeadsForward[] = {
    {"cpu", on_cpus,
     [](const HeadsForwardCall& call, TensorView, const Stream& stream) {
       cpu::rms_norm_forward(call.views, call.epsilon, stream);
       cpu::rope(call.views.y, call.rope.positions, call.rope.frequencies, Pass::forward, stream);
     }},
    {"cuda", on_cuda_gpus, [](const HeadsForwardCall& call, TensorView, const Stream& stream) {
       cuda::rms_norm_rope_forward(call.views, call.epsilon, call.rope, stream);
     }}};

struct HeadsBackwardCall {
  BackwardCall norm;
  const RopeCall& rope;
};
constexpr OperationRow<HeadsBackwardCall> kHeadsBackward[] = {
    {"cpu", on_cpus,
     [](const HeadsBackwardCall& call, TensorView workspace, const Stream& stream) {
       const RmsNormBackward& views = call.norm.views;
       cpu::rope(views.y_gradient, call.rope.positions, call.rope.frequencies, Pass::backward, stream);
       cpu::rms_norm_backward(views, call.norm.x_gradient, workspace, stream);
     },
     [](const HeadsBackwardCall& call, const DeviceDescription& device) {
       return cpu_parts_bytes(call.norm, device);
     }},
    {"cuda", on_cuda_gpus,
     [](const HeadsBackwardCall& call, TensorView workspace, const Stream& stream) {
       cuda::rms_norm_rope_backward(call.norm.views, call.norm.x_gradient, call.rope, workspace, stream);
     },
     [](const HeadsBackwardCall& call, const DeviceDescription& device) {
       return cuda_parts_bytes(call.norm, device);
     }}};

void check_forward(const RmsNormForward& views, float epsilon) {
  const Arguments arguments("rms_norm");
  check_inputs(arguments, views.x, views.weight, views.rstd);
  check_like_x(arguments, views.y, views.x, "y");
  arguments.written_rows(views.y, "y");
  check(epsilon >= 0, "rms_norm: epsilon is {}; it has to be at least 0", epsilon);
}

void check_backward(const RmsNormBackward& views) {
  const Arguments arguments("rms_norm");
  check_inputs(arguments, views.x, views.weight, views.rstd);
  check_like_x(arguments, views.y_gradient, views.x, "y_gradient");
  arguments.rows(views.y_gradient, "y_gradient");
  check_like_x(arguments, views.x_gradient, views.x, "x_gradient");
  arguments.written_rows(views.x_gradient, "x_gradient");
  const DType summed = views.weight_gradient.dtype() == views.x.dtype() ? views.x.dtype() : DType::f32;
  arguments.vector(views.weight_gradient, summed, views.weight.shape(), "weight_gradient");
}

}  // namespace

void rms_norm_forward(Context& context, const RmsNormForward& views, float epsilon) {
  check_forward(views, epsilon);
  run_operation<ForwardCall>(context, kForward, {views, epsilon}, moves("norm", {views.x, views.y}));
}

void rms_norm_backward(Context& context, const RmsNormBackward& views, Store x_gradient) {
  check_backward(views);
  run_operation<BackwardCall>(context, kBackward, {views, x_gradient},
                              moves("norm backward", {views.x, views.y_gradient, views.x_gradient}));
}

void rms_norm_rope_forward(Context& context, const RmsNormForward& views, float epsilon,
                           const RopeCall& rope) {
  check_forward(views, epsilon);
  check_rope(views.y, rope);
  run_operation<HeadsForwardCall>(context, kHeadsForward, {views, epsilon, rope},
                                  moves("norm and rope", {views.x, views.y}));
}

void rms_norm_rope_backward(Context& context, const RmsNormBackward& views, Store x_gradient,
                            const RopeCall& rope) {
  check_backward(views);
  check_rope(views.y_gradient, rope);
  run_operation<HeadsBackwardCall>(
      context, kHeadsBackward, {{views, x_gradient}, rope},
      moves("norm and rope backward", {views.x, views.y_gradient, views.x_gradient}));
}

namespace cpu {

void rms_norm_forward(const RmsNormForward& views, float epsilon, const Stream& stream) {
  const std::int64_t dim = dim_of(views.x.shape());
  const RmsNormForwardRows rows{.x = rows_of(views.x),
                                .y = rows_of(views.y),
                                .weight = views.weight.raw(),
                                .weight_dtype = views.weight.dtype(),
                                .rstd = views.rstd.data<float>(),
                                .dim = dim,
                                .epsilon = epsilon};
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_row_chunks(headroom::rows_of(views.x.shape()), dim, stream,
                 [&](std::int64_t begin, std::int64_t end) { kernels.rms_norm_forward(rows, begin, end); });
}

void rms_norm_backward(const RmsNormBackward& views, Store x_gradient, const TensorView& workspace,
                       const Stream& stream) {
  const std::int64_t dim = dim_of(views.x.shape());
  const std::int64_t count = headroom::rows_of(views.x.shape());
  const RmsNormBackwardRows rows{.x = rows_of(views.x),
                                 .y_gradient = rows_of(views.y_gradient),
                                 .x_gradient = rows_of(views.x_gradient),
                                 .weight = views.weight.raw(),
                                 .weight_dtype = views.weight.dtype(),
                                 .rstd = views.rstd.data<float>(),
                                 .dim = dim,
                                 .add = x_gradient == Store::add};
  const OpKernels& kernels = op_kernels(stream.device->simd);
  auto* parts = static_cast<float*>(workspace.raw());
  const std::int64_t chunk = chunk_rows(count);
  const std::int64_t chunks = divide_up(count, chunk);
  parallel_for(stream, chunks, [&](std::int64_t item) {
    kernels.rms_norm_backward(rows, item * chunk, std::min(count, (item + 1) * chunk), parts + item * dim);
  });
  parallel_for(stream, divide_up(dim, kColumns), [&](std::int64_t item) {
    const std::int64_t column = item * kColumns;
    kernels.add_parts(parts + column, chunks, dim, std::min(kColumns, dim - column),
                      views.weight_gradient.dtype(), at(views.weight_gradient, column));
  });
}

}  // namespace cpu
}  // namespace headroom
