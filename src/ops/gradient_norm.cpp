#include "headroom/ops/gradient_norm.h"

#include <cmath>

#include "headroom/core/elements.h"
#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/work.h"

namespace headroom {
namespace {

constexpr std::int64_t kChunk = 1 << 16;  // elements of one partial sum

void check_sum(const Arguments& arguments, const TensorView& sum, std::string_view what) {
  arguments.shape(sum, {1}, what);
  if (sum.dtype() != DType::f32) arguments.dtype(sum, DType::f64, what);
}

}  // namespace

void sum_of_squares(Context& context, const TensorView& view, const TensorView& result, Store store) {
  const Arguments arguments(context, "sum_of_squares");
  arguments.dtype(view, DType::f32, "the view");
  arguments.dense(view, "the view");
  check_sum(arguments, result, "the result");
  const Tensor workspace = context.allocate({.name = "sum_of_squares workspace",
                                             .category = Category::workspace,
                                             .dtype = DType::f64,
                                             .shape = cpu::sum_of_squares_workspace(view.shape())});
  context.run(moves("gradient norm", {view}),
              [&](const Stream& stream) { cpu::sum_of_squares(view, result, store, workspace, stream); });
}

void clip_factor(Context& context, const ClipFactor& views, const Clipping& clipping) {
  const Arguments arguments(context, "clip_factor");
  check_sum(arguments, views.sum_of_squares, "sum_of_squares");
  arguments.vector(views.norm, DType::f32, {1}, "norm");
  arguments.vector(views.factor, DType::f32, {1}, "factor");
  arguments.vector(views.finite, DType::i32, {1}, "finite");
  check(clipping.max_norm > 0, "clip_factor: max_norm is {}; it has to be above 0, infinity clips nothing",
        clipping.max_norm);
  check(clipping.scale > 0 && std::isfinite(clipping.scale),
        "clip_factor: scale is {}; it has to be above 0 and finite", clipping.scale);
  context.run(moves("clip factor", {}), [&](const Stream&) { cpu::clip_factor(views, clipping); });
}

namespace cpu {

Shape sum_of_squares_workspace(const Shape& view) {
  return {divide_up(view.elements(), kChunk)};
}

void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  const auto* data = view.data<float>();
  auto* parts = workspace.data<double>();
  const std::int64_t elements = view.elements();
  const std::int64_t chunks = divide_up(elements, kChunk);
  parallel_for(stream, chunks, [&](std::int64_t item) {
    parts[item] = kernels.sum_of_squares(data + item * kChunk, std::min(kChunk, elements - item * kChunk));
  });
  double sum = store == Store::add ? read_element(result, 0) : 0;
  for (std::int64_t item = 0; item < chunks; ++item) sum += parts[item];
  write_element(result, 0, sum);
}

void clip_factor(const ClipFactor& views, const Clipping& clipping) {
  const double norm = clipping.scale * std::sqrt(read_element(views.sum_of_squares, 0));
  const bool finite = std::isfinite(norm);
  write_element(views.norm, 0, norm);
  const double clipped = std::min(1.0, clipping.max_norm / (norm + 1e-6));
  write_element(views.factor, 0, finite ? clipping.scale * clipped : 0.0);
  *views.finite.data<std::int32_t>() = finite ? 1 : 0;
}

}  // namespace cpu
}  // namespace headroom
