// Norm and rotation of heads in one pass: as the two one after the other.
#include "headroom/ops/rms_norm.h"
#include "ops/cases.h"

namespace headroom {
namespace {

constexpr double kEpsilon = 1e-5F;

struct Inputs {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t dim;
  RopeFrequencies frequencies;
  std::vector<std::int32_t> positions;
  Values x, weight, dy, dx, dweight;
};

Inputs random_inputs(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype,
                     DType weight_dtype) {
  Inputs inputs{.tokens = tokens,
                .heads = heads,
                .dim = dim,
                .frequencies = rope_frequencies({.theta = 1e6}, dim),
                .positions = {},
                .x = random_values(tokens * heads * dim, dtype, 1),
                .weight = random_values(dim, weight_dtype, 2),
                .dy = random_values(tokens * heads * dim, dtype, 3),
                .dx = random_values(tokens * heads * dim, dtype, 4),
                .dweight = random_values(dim, DType::f32, 5)};
  for (std::int64_t t = 0; t < tokens; ++t) {
    inputs.positions.push_back(
        static_cast<std::int32_t>(Random(6).below(static_cast<std::uint64_t>(t), 1 << 20)));
  }
  return inputs;
}

struct Results {
  Values y, rstd, dx, dweight;
};

// The definition, in double or in float.
template <class Real>
Results plain(const Inputs& in, bool add) {
  Results results{.y = in.x, .rstd = {}, .dx = in.dx, .dweight = {}};
  std::vector<Real> dweight(in.dweight.begin(), in.dweight.end());
  const auto dim = static_cast<std::size_t>(in.dim);
  const std::size_t half = dim / 2;
  for (std::size_t row = 0; row < in.x.size() / dim; ++row) {
    std::vector<Real> x(dim), h(dim), y(dim), dy(dim);
    Real squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      x[i] = static_cast<Real>(in.x[row * dim + i]);
      squares += x[i] * x[i];
    }
    const Real rstd = 1 / std::sqrt(squares / static_cast<Real>(dim) + static_cast<Real>(kEpsilon));
    for (std::size_t i = 0; i < dim; ++i) {
      h[i] = x[i] * rstd;
      y[i] = h[i] * static_cast<Real>(in.weight[i]);
    }
    for (std::size_t i = 0; i < half; ++i) {
      const long double angle =
          static_cast<long double>(in.positions[row / static_cast<std::size_t>(in.heads)]) *
          in.frequencies.inverse[i];
      const auto c = static_cast<Real>(std::cos(angle));
      const auto s = static_cast<Real>(std::sin(angle));
      results.y[row * dim + i] = y[i] * c - y[i + half] * s;
      results.y[row * dim + i + half] = y[i + half] * c + y[i] * s;
      const auto left = static_cast<Real>(in.dy[row * dim + i]);
      const auto right = static_cast<Real>(in.dy[row * dim + i + half]);
      dy[i] = left * c + right * s;
      dy[i + half] = right * c - left * s;
    }
    Real dot = 0;
    for (std::size_t i = 0; i < dim; ++i) dot += dy[i] * static_cast<Real>(in.weight[i]) * h[i];
    const Real mean = dot / static_cast<Real>(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      const Real dx = rstd * (dy[i] * static_cast<Real>(in.weight[i]) - h[i] * mean);
      results.dx[row * dim + i] = add ? static_cast<Real>(in.dx[row * dim + i]) + dx : dx;
      dweight[i] += dy[i] * h[i];
    }
    results.rstd.push_back(rstd);
  }
  results.dweight.assign(dweight.begin(), dweight.end());
  return results;
}

Results run(const Inputs& in, DType dtype, DType weight_dtype, bool add, std::int64_t gap) {
  Results results;
  run_phase(2, [&](Context& context) {
    const Shape shape{in.tokens, in.heads, in.dim};
    const PlacedIds positions(context, in.positions);
    const RopeCall rope{positions, in.frequencies};
    const Placed x(context, shape, dtype, in.x, gap);
    const Placed weight(context, {in.dim}, weight_dtype, in.weight);
    const Placed y(context, shape, dtype, gap);
    const Placed rstd(context, {in.tokens, in.heads}, DType::f32);
    rms_norm_rope_forward(context, {.x = x.view, .weight = weight.view, .y = y.view, .rstd = rstd.view},
                          static_cast<float>(kEpsilon), rope);
    const Placed dy(context, shape, dtype, in.dy, gap);
    const Placed dx(context, shape, dtype, in.dx, 2 * gap);
    const Placed dweight(context, {in.dim}, DType::f32, in.dweight);
    rms_norm_rope_backward(context,
                           {.x = x.view,
                            .weight = weight.view,
                            .rstd = rstd.view,
                            .y_gradient = dy.view,
                            .x_gradient = add ? dx.view : dy.view,
                            .weight_gradient = dweight.view},
                           add ? Store::add : Store::overwrite, rope);
    results = {y.read(context), rstd.read(context), (add ? dx : dy).read(context), dweight.read(context)};
  });
  return results;
}

class Heads : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, Heads, all_levels());

// Gaps of eight elements leave heads where every vector is aligned, gaps of four those of eight bytes, gaps
// of three none.
void expect_plain(const Inputs& inputs, DType dtype, DType weight_dtype, bool add, std::int64_t gap) {
  const Results exact = plain<double>(inputs, add);
  const Results loop = plain<float>(inputs, add);
  const Results actual = run(inputs, dtype, weight_dtype, add, gap);
  const std::string what = fmt::format("{} tokens {} heads {} dim {} add {} gap {}", name(dtype),
                                       inputs.tokens, inputs.heads, inputs.dim, add, gap);
  expect_close(actual.y, loop.y, exact.y, 2, dtype, what + " y");
  expect_close(actual.rstd, loop.rstd, exact.rstd, 2, DType::f32, what + " rstd");
  expect_close(actual.dx, loop.dx, exact.dx, 3, dtype, what + " dx");
  // The two one after the other round in between.
  expect_close(actual.dweight, loop.dweight, exact.dweight, 3, dtype, what + " dweight");
}

TEST_P(Heads, AreNormedAndTurnedAsThePlainLoopDoes) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t dim : {2, 6, 64, 72, 80, 128, 256}) {
      const DType weight_dtype = dim == 80 ? DType::f32 : dtype;
      const Inputs inputs = random_inputs(dim == 64 ? 70 : 19, 3, dim, dtype, weight_dtype);
      for (const std::int64_t gap : {3, 4, 8}) expect_plain(inputs, dtype, weight_dtype, gap != 3, gap);
      expect_plain(inputs, dtype, weight_dtype, false, 8);
    }
  }
}

// More of both than are under way at once.
TEST_P(Heads, ManyTokensAndManyHeads) {
  expect_plain(random_inputs(401, 5, 128, DType::bf16, DType::bf16), DType::bf16, DType::bf16, false, 0);
  expect_plain(random_inputs(211, 7, 64, DType::f32, DType::f32), DType::f32, DType::f32, true, 0);
  expect_plain(random_inputs(3, 13, 256, DType::bf16, DType::f32), DType::bf16, DType::f32, false, 0);
}

}  // namespace
}  // namespace headroom
