#include "headroom/ops/swiglu.h"

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/swiglu.h"
#include "ops/work.h"

namespace headroom {
namespace {

void check_gate(const Arguments& arguments, const TensorView& gate) {
  arguments.floating(gate, "gate");
  arguments.rank(gate, 2, 2, "gate");
  arguments.rows(gate, "gate");
}

void check_like_gate(const Arguments& arguments, const TensorView& view, const TensorView& gate,
                     std::string_view what) {
  arguments.dtype(view, gate.dtype(), what);
  arguments.shape(view, gate.shape(), what);
  arguments.rows(view, what);
}

constexpr OperationRow<SwigluForward> kForward[] = {
    {"cpu", on_cpus,
     [](const SwigluForward& call, TensorView, const Stream& stream) {
       cpu::swiglu_forward(call.gate, call.up, call.act, stream);
     }},
    {"cuda", on_cuda_gpus, [](const SwigluForward& call, TensorView, const Stream& stream) {
       cuda::swiglu_forward(call.gate, call.up, call.act, stream);
     }}};
constexpr OperationRow<SwigluBackward> kBackward[] = {
    {"cpu", on_cpus,
     [](const SwigluBackward& call, TensorView, const Stream& stream) {
       cpu::swiglu_backward(call, stream);
     }},
    {"cuda", on_cuda_gpus, [](const SwigluBackward& call, TensorView, const Stream& stream) {
       cuda::swiglu_backward(call, stream);
     }}};

}  // namespace

std::span<const OperationRow<SwigluForward>> swiglu_forward_rows() {
  return kForward;
}
std::span<const OperationRow<SwigluBackward>> swiglu_backward_rows() {
  return kBackward;
}

void swiglu_forward(Context& context, const TensorView& gate, const TensorView& up, const TensorView& act) {
  const Arguments arguments("swiglu");
  check_gate(arguments, gate);
  check_like_gate(arguments, up, gate, "up");
  check_like_gate(arguments, act, gate, "act");
  arguments.written_rows(act, "act");
  run_operation<SwigluForward>(context, kForward, {gate, up, act}, moves("swiglu", {gate, up, act}));
}

void swiglu_backward(Context& context, const SwigluBackward& views) {
  const Arguments arguments("swiglu");
  check_gate(arguments, views.gate);
  check_like_gate(arguments, views.up, views.gate, "up");
  check_like_gate(arguments, views.act_gradient, views.gate, "act_gradient");
  check_like_gate(arguments, views.gate_gradient, views.gate, "gate_gradient");
  arguments.written_rows(views.gate_gradient, "gate_gradient");
  check_like_gate(arguments, views.up_gradient, views.gate, "up_gradient");
  arguments.written_rows(views.up_gradient, "up_gradient");
  if (views.act.elements() > 0) {
    check_like_gate(arguments, views.act, views.gate, "act");
    arguments.written_rows(views.act, "act");
  }
  run_operation<SwigluBackward>(
      context, kBackward, views,
      moves("swiglu backward",
            {views.gate, views.up, views.act_gradient, views.gate_gradient, views.up_gradient, views.act}));
}

namespace cpu {

void swiglu_forward(const TensorView& gate, const TensorView& up, const TensorView& act,
                    const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_each_span(std::array{gate, up, act}, stream,
                [&](const std::array<void*, 3>& pointers, std::int64_t count) {
                  kernels.swiglu_forward(gate.dtype(), pointers[0], pointers[1], pointers[2], count);
                });
}

void swiglu_backward(const SwigluBackward& views, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  const bool wanted = views.act.elements() > 0;
  for_each_span(std::array{views.gate, views.up, views.act_gradient, views.gate_gradient, views.up_gradient,
                           wanted ? views.act : views.gate},
                stream, [&](const std::array<void*, 6>& pointers, std::int64_t count) {
                  kernels.swiglu_backward({.dtype = views.gate.dtype(),
                                           .gate = pointers[0],
                                           .up = pointers[1],
                                           .act_gradient = pointers[2],
                                           .gate_gradient = pointers[3],
                                           .up_gradient = pointers[4],
                                           .act = wanted ? pointers[5] : nullptr},
                                          count);
                });
}

}  // namespace cpu
}  // namespace headroom
