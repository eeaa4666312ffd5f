// What operations say they do, which predicted times and `headroom profile` are made of: against figures
// worked out by hand.
#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <vector>

#include "headroom/ops.h"

namespace headroom {
namespace {

TensorView view(DType dtype, const Shape& shape) {
  return {nullptr, dtype, shape};
}

// The one piece of work that a call rehearses.
void expect_work(std::string_view kernel, double flops, double bytes,
                 const std::function<void(Context&)>& call) {
  Context context({.name = "made up"});
  context.phase(Phase::step, [&] { call(context); });
  const std::span<const WorkRecord> work = context.work(Phase::step);
  ASSERT_EQ(work.size(), 1U) << kernel;
  EXPECT_EQ(work[0].work.kernel, kernel);
  EXPECT_EQ(work[0].work.flops, flops) << kernel;
  EXPECT_EQ(work[0].work.bytes, bytes) << kernel;
}

constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kHidden = 8;
constexpr std::int64_t kMlp = 24;
constexpr double kRows = kTokens * kHidden * 2;  // bytes of [tokens, hidden] in bf16
constexpr double kWide = kTokens * kMlp * 2;     // and of [tokens, mlp]

TEST(Work, OfProducts) {
  expect_work("product", 2 * 6 * 10 * 8, 6 * 8 * 2 + 8 * 10 * 2 + 6 * 10 * 4, [](Context& context) {
    matmul(context, view(DType::bf16, {6, 8}), view(DType::bf16, {8, 10}), view(DType::f32, {6, 10}));
  });
}

TEST(Work, OfTheMlp) {
  constexpr double kProduct = 2.0 * kTokens * kMlp * kHidden;
  constexpr double kWeights = 3 * kMlp * kHidden * 2;
  for (const bool keeps : {false, true}) {
    const TensorView rows = view(DType::bf16, {kTokens, kHidden});
    const TensorView kept = keeps ? view(DType::bf16, {kTokens, 2 * kMlp}) : TensorView{};
    const auto weights = [](DType dtype) {
      return MlpWeights{.gate = view(dtype, {kMlp, kHidden}),
                        .up = view(dtype, {kMlp, kHidden}),
                        .down = view(dtype, {kHidden, kMlp})};
    };
    const MlpForward forward{.x = rows, .weights = weights(DType::bf16), .y = rows, .gate_up = kept};
    // Two tiles read the weights; in backward twice, and their f32 gradients are read and written.
    const double tokens = 2 * kRows + (keeps ? 2 * kWide : 0);
    expect_work("mlp", 3 * kProduct, tokens + 2 * kWeights,
                [&](Context& context) { mlp_forward(context, forward, 4); });
    // Six products, and gate and up again where they were not kept.
    expect_work(
        "mlp backward", (keeps ? 6 : 8) * kProduct, 3 * tokens + 2 * (2 + 4) * kWeights,
        [&](Context& context) {
          mlp_backward(
              context,
              {.forward = forward, .y_gradient = rows, .x_gradient = rows, .gradients = weights(DType::f32)},
              4);
        });
  }
}

TEST(Work, OfWhatMovesBytes) {
  const TensorView rows = view(DType::bf16, {kTokens, kHidden});
  const TensorView wide = view(DType::bf16, {kTokens, kMlp});
  const TensorView ids = view(DType::i32, {kTokens});
  const TensorView norm = view(DType::f32, {kHidden});
  const TensorView rstd = view(DType::f32, {kTokens});
  const TensorView one = view(DType::f32, {1});
  expect_work("norm", 0, 2 * kRows, [&](Context& context) {
    rms_norm_forward(context, {.x = rows, .weight = norm, .y = rows, .rstd = rstd}, 1e-6F);
  });
  expect_work("norm backward", 0, 3 * kRows, [&](Context& context) {
    rms_norm_backward(context,
                      {.x = rows,
                       .weight = norm,
                       .rstd = rstd,
                       .y_gradient = rows,
                       .x_gradient = rows,
                       .weight_gradient = norm},
                      Store::add);
  });
  expect_work("rope", 0, 2 * kRows, [&](Context& context) {
    rope(context, view(DType::bf16, {kTokens, 2, 4}), ids, rope_frequencies({.theta = 10'000}, 4),
         Pass::forward);
  });
  expect_work("swiglu", 0, 3 * kWide, [&](Context& context) { swiglu_forward(context, wide, wide, wide); });
  expect_work("swiglu backward", 0, 5 * kWide, [&](Context& context) {
    swiglu_backward(
        context,
        {.gate = wide, .up = wide, .act_gradient = wide, .gate_gradient = wide, .up_gradient = wide});
  });
  expect_work("embedding", 0, 2 * kRows, [&](Context& context) {
    embedding_forward(context, view(DType::bf16, {10, kHidden}), ids, rows);
  });
  expect_work("embedding backward", 0, 3 * kRows, [&](Context& context) {
    embedding_backward(context, ids, rows, view(DType::f32, {10, kHidden}));
  });
  // Master, gradient and moments in f32, of which all but the gradient are written too; weights in bf16.
  expect_work("adamw", 0, 7 * 4 * 50 + 2 * 50, [&](Context& context) {
    const TensorView flat = view(DType::f32, {50});
    adamw(context,
          {.master = flat,
           .gradient = flat,
           .first = flat,
           .second = flat,
           .weight = view(DType::bf16, {50}),
           .factor = one},
          {});
  });
  expect_work("gradient norm", 0, 4 * 50, [&](Context& context) {
    sum_of_squares(context, view(DType::f32, {50}), view(DType::f64, {1}), Store::overwrite);
  });
  expect_work("add", 0, 3 * kRows, [&](Context& context) { add(context, rows, rows, rows); });
  expect_work("fill", 0, kRows, [&](Context& context) { fill(context, rows, 1); });
  expect_work("zero", 0, kRows, [&](Context& context) { zero(context, rows); });
  expect_work("convert", 0, 4 * 50 + 2 * 50,
              [&](Context& context) { convert(context, view(DType::f32, {50}), view(DType::bf16, {50})); });
}

}  // namespace
}  // namespace headroom
