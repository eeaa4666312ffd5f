#include "headroom/ops/rms_norm.h"

#include <gmock/gmock.h>

#include "ops/cases.h"

namespace headroom {
namespace {

using testing::HasSubstr;

constexpr double kEpsilon = 1e-5F;

struct Sizes {
  std::int64_t rows;
  std::int64_t dim;
};

struct Inputs {
  Values x;
  Values weight;
  Values dy;
  Values dx;       // what is there before
  Values dweight;  // likewise
};

Inputs random_inputs(Sizes sizes, DType dtype, DType weight_dtype) {
  const std::int64_t elements = sizes.rows * sizes.dim;
  Inputs inputs{random_values(elements, dtype, 1), random_values(sizes.dim, weight_dtype, 2),
                random_values(elements, dtype, 3), random_values(elements, dtype, 4),
                random_values(sizes.dim, DType::f32, 5)};
  // A row of zeros has a gradient too.
  if (sizes.rows > 2) std::fill_n(inputs.x.begin() + sizes.dim, sizes.dim, 0.0);
  return inputs;
}

struct Results {
  Values y;
  Values rstd;
  Values dx;
  Values dweight;
};

// The definition, in double or in float.
template <class Real>
Results plain(Sizes sizes, const Inputs& inputs, bool add) {
  Results results{inputs.x, Values(static_cast<std::size_t>(sizes.rows)), inputs.dx, inputs.dweight};
  std::vector<Real> dweight(inputs.dweight.begin(), inputs.dweight.end());
  for (std::int64_t row = 0; row < sizes.rows; ++row) {
    const auto at = [&](const Values& values, std::int64_t i) {
      return static_cast<Real>(values[static_cast<std::size_t>(row * sizes.dim + i)]);
    };
    const auto weight = [&](std::int64_t i) {
      return static_cast<Real>(inputs.weight[static_cast<std::size_t>(i)]);
    };
    Real squares = 0;
    for (std::int64_t i = 0; i < sizes.dim; ++i) squares += at(inputs.x, i) * at(inputs.x, i);
    const Real rstd = 1 / std::sqrt(squares / static_cast<Real>(sizes.dim) + static_cast<Real>(kEpsilon));
    results.rstd[static_cast<std::size_t>(row)] = rstd;
    Real dot = 0;
    for (std::int64_t i = 0; i < sizes.dim; ++i) dot += at(inputs.dy, i) * weight(i) * at(inputs.x, i) * rstd;
    const Real mean = dot / static_cast<Real>(sizes.dim);
    for (std::int64_t i = 0; i < sizes.dim; ++i) {
      const auto place = static_cast<std::size_t>(row * sizes.dim + i);
      const Real h = at(inputs.x, i) * rstd;
      results.y[place] = h * weight(i);
      const Real dx = rstd * (at(inputs.dy, i) * weight(i) - h * mean);
      results.dx[place] = add ? at(inputs.dx, i) + dx : dx;
      dweight[static_cast<std::size_t>(i)] += at(inputs.dy, i) * h;
    }
  }
  results.dweight.assign(dweight.begin(), dweight.end());
  return results;
}

Results run(Sizes sizes, const Inputs& inputs, DType dtype, DType weight_dtype, bool add, int threads,
            std::int64_t gap) {
  Results results;
  run_phase(threads, [&](Context& context) {
    const Shape shape{sizes.rows, sizes.dim};
    const Placed x(context, shape, dtype, inputs.x, gap);
    const Placed weight(context, {sizes.dim}, weight_dtype, inputs.weight);
    const Placed y(context, shape, dtype, gap);
    const Placed rstd(context, {sizes.rows}, DType::f32);
    rms_norm_forward(context, {.x = x.view, .weight = weight.view, .y = y.view, .rstd = rstd.view},
                     static_cast<float>(kEpsilon));
    const Placed dy(context, shape, dtype, inputs.dy, 2 * gap);
    const Placed dx(context, shape, dtype, inputs.dx, 3 * gap);
    const Placed dweight(context, {sizes.dim}, DType::f32, inputs.dweight);
    rms_norm_backward(context,
                      {.x = x.view,
                       .weight = weight.view,
                       .rstd = rstd.view,
                       .y_gradient = dy.view,
                       .x_gradient = dx.view,
                       .weight_gradient = dweight.view},
                      add ? Store::add : Store::overwrite);
    results = {y.read(context), rstd.read(context), dx.read(context), dweight.read(context)};
  });
  return results;
}

class RmsNorm : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, RmsNorm, all_levels());

TEST_P(RmsNorm, WithinThePlainLoop) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t dim : {1, 7, 63, 64, 65, 1000}) {
      for (const bool add : {false, true}) {
        const Sizes sizes{dim == 64 ? 301 : 37, dim};
        const DType weight_dtype = dim == 65 ? DType::f32 : dtype;
        const Inputs inputs = random_inputs(sizes, dtype, weight_dtype);
        const Results exact = plain<double>(sizes, inputs, add);
        const Results loop = plain<float>(sizes, inputs, add);
        const Results actual = run(sizes, inputs, dtype, weight_dtype, add, 2, dim == 7 ? 0 : 5);
        const std::string what = fmt::format("{} dim {} add {}", name(dtype), dim, add);
        expect_close(actual.y, loop.y, exact.y, 2, dtype, what + " y");
        expect_close(actual.rstd, loop.rstd, exact.rstd, 2, DType::f32, what + " rstd");
        expect_close(actual.dx, loop.dx, exact.dx, 3, dtype, what + " dx");
        expect_close(actual.dweight, loop.dweight, exact.dweight, 3, DType::f32, what + " dweight");
      }
    }
  }
}

// Hidden sizes of models, those between what GPUs have kernels for, and the longest row. Three groups of rows
// and a part of one for each block of backward.
TEST_P(RmsNorm, LongRows) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t dim : {72, 896, 2560, 3072, 3080, 4096, 5120, 8192, 16384, 16392, 32768}) {
      const Sizes sizes{dim <= 3072 ? 91 : 11, dim};
      const Inputs inputs = random_inputs(sizes, dtype, dtype);
      const Results exact = plain<double>(sizes, inputs, true);
      const Results loop = plain<float>(sizes, inputs, true);
      const Results actual = run(sizes, inputs, dtype, dtype, true, 2, 8);
      const std::string what = fmt::format("{} dim {}", name(dtype), dim);
      expect_close(actual.y, loop.y, exact.y, 2, dtype, what + " y");
      expect_close(actual.rstd, loop.rstd, exact.rstd, 2, DType::f32, what + " rstd");
      expect_close(actual.dx, loop.dx, exact.dx, 3, dtype, what + " dx");
      expect_close(actual.dweight, loop.dweight, exact.dweight, 3, DType::f32, what + " dweight");
    }
  }
}

TEST_P(RmsNorm, ReferenceAgreesWithFiniteDifferences) {
  const Sizes sizes{3, 5};
  Inputs inputs = random_inputs(sizes, DType::f64, DType::f64);
  inputs.x = random_values(15, DType::f32, 9);  // differences of the row of zeros would be too steep
  std::fill(inputs.dweight.begin(), inputs.dweight.end(), 0.0);
  const Results exact = plain<double>(sizes, inputs, false);
  const auto objective = [&] {
    const Values y = plain<double>(sizes, inputs, false).y;
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * inputs.dy[i];
    return sum;
  };
  for (std::size_t i = 0; i < 15; ++i) EXPECT_NEAR(slope(inputs.x, i, objective), exact.dx[i], 1e-7);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(slope(inputs.weight, i, objective), exact.dweight[i], 1e-7);
}

TEST_P(RmsNorm, SameBitsOnAnyThreadCount) {
  const Sizes sizes{3000, 65};
  const Inputs inputs = random_inputs(sizes, DType::f32, DType::f32);
  const Results one = run(sizes, inputs, DType::f32, DType::f32, false, 1, 3);
  for (const int threads : {2, 3}) {
    const Results more = run(sizes, inputs, DType::f32, DType::f32, false, threads, 3);
    EXPECT_EQ(one.y, more.y);
    EXPECT_EQ(one.rstd, more.rstd);
    EXPECT_EQ(one.dx, more.dx);
    EXPECT_EQ(one.dweight, more.dweight);
  }
}

// The heads of a token inside a wider row: as the same rows side by side.
TEST_P(RmsNorm, HeadsInsideWiderRows) {
  constexpr std::int64_t kTokens = 19;
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kDim = 24;
  const Sizes sizes{kTokens * kHeads, kDim};
  const Inputs inputs = random_inputs(sizes, DType::f32, DType::f32);
  const Results flat = run(sizes, inputs, DType::f32, DType::f32, false, 2, 0);
  run_phase(2, [&](Context& context) {
    // [tokens, heads * dim] with a gap after every token
    const auto heads = [](const Placed& placed) {
      const std::int64_t strides[] = {placed.view.stride(0), kDim, 1};
      return TensorView(placed.view.raw(), DType::f32, {kTokens, kHeads, kDim}, strides);
    };
    const Shape shape{kTokens, kHeads * kDim};
    const Placed x(context, shape, DType::f32, inputs.x, 11);
    const Placed weight(context, {kDim}, DType::f32, inputs.weight);
    const Placed rstd(context, {kTokens, kHeads}, DType::f32);
    const Placed dy(context, shape, DType::f32, inputs.dy, 11);
    const Placed dx(context, shape, DType::f32, 11);
    const Placed dweight(context, {kDim}, DType::f32, inputs.dweight);
    const Placed y(context, shape, DType::f32, 11);
    rms_norm_forward(context, {.x = heads(x), .weight = weight.view, .y = heads(y), .rstd = rstd.view},
                     static_cast<float>(kEpsilon));
    rms_norm_backward(context,
                      {.x = heads(x),
                       .weight = weight.view,
                       .rstd = rstd.view,
                       .y_gradient = heads(dy),
                       .x_gradient = heads(dx),
                       .weight_gradient = dweight.view},
                      Store::overwrite);
    const Values ys = y.read(context);
    const Values dxs = dx.read(context);
    const Values dweights = dweight.read(context);
    if (context.phantom()) return;
    EXPECT_EQ(ys, flat.y);
    EXPECT_EQ(dxs, flat.dx);
    EXPECT_EQ(dweights, flat.dweight);
  });
}

TEST_P(RmsNorm, NoRows) {
  const Results results =
      run({0, 16}, random_inputs({0, 16}, DType::bf16, DType::bf16), DType::bf16, DType::bf16, false, 2, 0);
  EXPECT_TRUE(results.y.empty());
  EXPECT_EQ(results.dweight, random_values(16, DType::f32, 5));  // nothing was added
}

std::string message_of(const RmsNormForward& views, float epsilon = 1e-6F) {
  Context context(DeviceDescription{.name = "made up"});
  try {
    rms_norm_forward(context, views, epsilon);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RmsNormArguments, NameWhatIsWrong) {
  const auto view = [](const Shape& shape, DType dtype = DType::f32) {
    return TensorView(nullptr, dtype, shape);
  };
  const RmsNormForward good{.x = view({4, 8}), .weight = view({8}), .y = view({4, 8}), .rstd = view({4})};
  EXPECT_EQ(message_of(good), "");
  RmsNormForward bad = good;
  bad.weight = view({7});
  EXPECT_EQ(message_of(bad), "rms_norm: weight has shape [7], not [8]");
  bad = good;
  bad.x = view({4, 8}, DType::i32);
  EXPECT_EQ(message_of(bad), "rms_norm: x holds i32, not f32, bf16 or f16");
  bad = good;
  bad.y = view({4, 8}, DType::bf16);
  EXPECT_EQ(message_of(bad), "rms_norm: y holds bf16, not f32");
  bad = good;
  bad.x = view({8, 4}).transpose(0, 1);
  EXPECT_EQ(message_of(bad), "rms_norm: x has stride 4 inside a row, not 1");
  bad = good;
  const std::int64_t overlapping[] = {4, 1};
  bad.y = TensorView(nullptr, DType::f32, {4, 8}, overlapping);
  EXPECT_EQ(message_of(bad), "rms_norm: y is written, and its rows of 8 elements are 4 elements apart");
  EXPECT_THAT(message_of(good, -1), HasSubstr("epsilon is -1"));
}

}  // namespace
}  // namespace headroom
