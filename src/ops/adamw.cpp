#include "headroom/ops/adamw.h"

#include <cmath>

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

void check_settings(const AdamW& settings) {
  check(settings.learning_rate >= 0, "adamw: learning_rate is {}; it has to be at least 0",
        settings.learning_rate);
  check(settings.beta1 >= 0 && settings.beta1 < 1, "adamw: beta1 is {}; it goes from 0 to below 1",
        settings.beta1);
  check(settings.beta2 >= 0 && settings.beta2 < 1, "adamw: beta2 is {}; it goes from 0 to below 1",
        settings.beta2);
  check(settings.epsilon >= 0, "adamw: epsilon is {}; it has to be at least 0", settings.epsilon);
  check(settings.weight_decay >= 0, "adamw: weight_decay is {}; it has to be at least 0",
        settings.weight_decay);
  check(settings.step >= 1, "adamw: step is {}; the first is 1", settings.step);
}

// Bias corrections lose their digits in f32 (1 - 0.999^1), so all of this is double up to the last rounding.
AdamWFactors factors_of(const AdamW& settings) {
  const auto step = static_cast<double>(settings.step);
  const double bias1 = 1 - std::pow(settings.beta1, step);
  const double bias2 = 1 - std::pow(settings.beta2, step);
  return {.decay = static_cast<float>(1 - settings.learning_rate * settings.weight_decay),
          .beta1 = static_cast<float>(settings.beta1),
          .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
          .step_size = static_cast<float>(settings.learning_rate / bias1),
          .inverse_root_bias = static_cast<float>(1 / std::sqrt(bias2)),
          .epsilon = static_cast<float>(settings.epsilon)};
}

struct AdamWCall {
  AdamWViews views;
  AdamW settings;
};
constexpr OperationRow<AdamWCall> kRows[] = {
    {"cpu", on_cpus,
     [](const AdamWCall& call, TensorView, const Stream& stream) {
       cpu::adamw(call.views, factors_of(call.settings), stream);
     }},
    {"cuda", on_cuda_gpus, [](const AdamWCall& call, TensorView, const Stream& stream) {
       cuda::adamw(call.views, factors_of(call.settings), stream);
     }}};

}  // namespace

void adamw(Context& context, const AdamWViews& views, const AdamW& settings) {
  const Arguments arguments("adamw");
  const Shape& shape = views.master.shape();
  arguments.vector(views.master, DType::f32, shape, "master");
  arguments.vector(views.gradient, DType::f32, shape, "gradient");
  arguments.vector(views.first, DType::f32, shape, "first");
  arguments.vector(views.second, DType::f32, shape, "second");
  arguments.floating(views.weight, "weight");
  arguments.vector(views.weight, views.weight.dtype(), shape, "weight");
  arguments.vector(views.factor, DType::f32, {1}, "factor");
  check_settings(settings);
  // Master and moments are read and written.
  run_operation<AdamWCall>(context, kRows, {views, settings},
                           moves("adamw", {views.master, views.master, views.gradient, views.first,
                                           views.first, views.second, views.second, views.weight}));
}

namespace cpu {

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  const bool copied = views.weight.raw() != views.master.raw();
  for_each_span(std::array{views.master, views.gradient, views.first, views.second, views.weight}, stream,
                [&](const std::array<void*, 5>& pointers, std::int64_t count) {
                  kernels.adamw(factors,
                                {.master = static_cast<float*>(pointers[0]),
                                 .gradient = static_cast<const float*>(pointers[1]),
                                 .first = static_cast<float*>(pointers[2]),
                                 .second = static_cast<float*>(pointers[3]),
                                 .weight = copied ? pointers[4] : nullptr,
                                 .weight_dtype = views.weight.dtype(),
                                 .factor = views.factor.data<float>()},
                                count);
                });
}

}  // namespace cpu
}  // namespace headroom
