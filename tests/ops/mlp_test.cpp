#include "headroom/ops/mlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "headroom/core/elements.h"
#include "headroom/core/random.h"
#include "headroom/ops.h"
#include "memory/rehearsed.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

struct Sizes {
  std::int64_t tokens = 75;
  std::int64_t hidden = 40;
  std::int64_t mlp = 56;
  DType dtype = DType::f32;
};

// What a call reads, as f64, already rounded to the dtype; gradients as they stand before.
struct Inputs {
  explicit Inputs(const Sizes& s)
      : x(random(s.tokens * s.hidden, 1, 1, s.dtype)),
        gate(random(s.mlp * s.hidden, 2, 0.2, s.dtype)),
        up(random(s.mlp * s.hidden, 3, 0.2, s.dtype)),
        down(random(s.hidden * s.mlp, 4, 0.2, s.dtype)),
        dy(random(s.tokens * s.hidden, 5, 1, s.dtype)),
        dgate(random(s.mlp * s.hidden, 6, 1, DType::f32)),
        dup(random(s.mlp * s.hidden, 7, 1, DType::f32)),
        ddown(random(s.hidden * s.mlp, 8, 1, DType::f32)) {}

  std::vector<double> x, gate, up, down, dy, dgate, dup, ddown;

 private:
  static std::vector<double> random(std::int64_t count, std::uint64_t seed, double scale, DType dtype) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(scale * Random(seed).normal(i));
      values[i] = dtype == DType::bf16 ? static_cast<float>(BFloat16(value)) : value;
    }
    return values;
  }
};

struct Results {
  std::vector<double> y, dx, dgate, dup, ddown;

  bool operator==(const Results&) const = default;
};

// c [m, n] <- c + a [m, k] b, where at(i, j) of an operand reads it as the product needs it.
template <class A, class B>
void add_product(std::vector<double>& c, std::int64_t m, std::int64_t n, std::int64_t k, const A& a,
                 const B& b) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += a(i, p) * b(p, j);
      c[static_cast<std::size_t>(i * n + j)] += sum;
    }
  }
}
auto by_rows(const std::vector<double>& values, std::int64_t columns) {
  return [&values, columns](std::int64_t i, std::int64_t j) {
    return values[static_cast<std::size_t>(i * columns + j)];
  };
}
auto transposed(const std::vector<double>& values, std::int64_t columns) {
  return [&values, columns](std::int64_t i, std::int64_t j) {
    return values[static_cast<std::size_t>(j * columns + i)];
  };
}

Results plain(const Sizes& s, const Inputs& in) {
  const auto wide = static_cast<std::size_t>(s.tokens * s.mlp);
  const auto narrow = static_cast<std::size_t>(s.tokens * s.hidden);
  std::vector<double> gate(wide), up(wide), act(wide), dact(wide), dgate(wide), dup(wide);
  Results r{.y = std::vector<double>(narrow),
            .dx = std::vector<double>(narrow),
            .dgate = in.dgate,
            .dup = in.dup,
            .ddown = in.ddown};
  add_product(gate, s.tokens, s.mlp, s.hidden, by_rows(in.x, s.hidden), transposed(in.gate, s.hidden));
  add_product(up, s.tokens, s.mlp, s.hidden, by_rows(in.x, s.hidden), transposed(in.up, s.hidden));
  add_product(dact, s.tokens, s.mlp, s.hidden, by_rows(in.dy, s.hidden), by_rows(in.down, s.mlp));
  for (std::size_t i = 0; i < wide; ++i) {
    const double sigmoid = 1 / (1 + std::exp(-gate[i]));
    act[i] = gate[i] * sigmoid * up[i];
    dup[i] = dact[i] * gate[i] * sigmoid;
    dgate[i] = dact[i] * up[i] * sigmoid * (1 + gate[i] * (1 - sigmoid));
  }
  add_product(r.y, s.tokens, s.hidden, s.mlp, by_rows(act, s.mlp), transposed(in.down, s.mlp));
  add_product(r.dx, s.tokens, s.hidden, s.mlp, by_rows(dgate, s.mlp), by_rows(in.gate, s.hidden));
  add_product(r.dx, s.tokens, s.hidden, s.mlp, by_rows(dup, s.mlp), by_rows(in.up, s.hidden));
  add_product(r.dgate, s.mlp, s.hidden, s.tokens, transposed(dgate, s.mlp), by_rows(in.x, s.hidden));
  add_product(r.dup, s.mlp, s.hidden, s.tokens, transposed(dup, s.mlp), by_rows(in.x, s.hidden));
  add_product(r.ddown, s.hidden, s.mlp, s.tokens, transposed(in.dy, s.hidden), by_rows(act, s.mlp));
  return r;
}

std::vector<double> joined(const std::vector<double>& first, const std::vector<double>& second) {
  std::vector<double> both = first;
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

// Whether gate and up, and their gradients, are given as one matrix too.
enum class GateUp : std::uint8_t { apart, together };

Results run(const Sizes& s, const Inputs& in, std::int64_t tile, bool keep, int threads = 2,
            GateUp gate_up = GateUp::together) {
  Results results;
  std::vector<double> wide_gradients;  // of gate, then of up
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const auto given = [&](const Shape& shape, DType dtype, const std::vector<double>& values) {
        Tensor tensor = context.allocate({.name = "given", .dtype = dtype, .shape = shape});
        context.run([&](const Stream&) {
          for (std::int64_t i = 0; i < tensor.view().elements(); ++i) {
            // What is written only begins as NaN.
            write_element(tensor, i, values.empty() ? std::nan("") : values[static_cast<std::size_t>(i)]);
          }
        });
        return tensor;
      };
      const auto read = [&](const Tensor& tensor, std::vector<double>& values) {
        context.run([&](const Stream&) {
          for (std::int64_t i = 0; i < tensor.view().elements(); ++i)
            values.push_back(read_element(tensor, i));
        });
      };
      const Tensor x = given({s.tokens, s.hidden}, s.dtype, in.x);
      const Tensor wide = given({2 * s.mlp, s.hidden}, s.dtype, joined(in.gate, in.up));
      const Tensor down = given({s.hidden, s.mlp}, s.dtype, in.down);
      const Tensor dy = given({s.tokens, s.hidden}, s.dtype, in.dy);
      const Tensor dwide = given({2 * s.mlp, s.hidden}, DType::f32, joined(in.dgate, in.dup));
      const Tensor ddown = given({s.hidden, s.mlp}, DType::f32, in.ddown);
      const Tensor y = given({s.tokens, s.hidden}, s.dtype, {});
      const Tensor dx = given({s.tokens, s.hidden}, s.dtype, {});
      const auto weights_of = [&](const Tensor& both, const Tensor& last) {
        return MlpWeights{.gate = both.view().slice(0, 0, s.mlp),
                          .up = both.view().slice(0, s.mlp, s.mlp),
                          .down = last,
                          .gate_up = gate_up == GateUp::together ? both.view() : TensorView()};
      };
      MlpForward forward{.x = x, .weights = weights_of(wide, down), .y = y, .gate_up = {}};
      Tensor kept;
      if (keep) {
        kept = given({s.tokens, 2 * s.mlp}, s.dtype, {});
        forward.gate_up = kept;
      }
      mlp_forward(context, forward, tile);
      read(y, results.y);
      mlp_backward(
          context,
          {.forward = forward, .y_gradient = dy, .x_gradient = dx, .gradients = weights_of(dwide, ddown)},
          tile);
      read(dx, results.dx);
      read(dwide, wide_gradients);
      read(ddown, results.ddown);
    });
  };
  CpuBackend backend(threads);
  Context context(backend, rehearse(program, backend.description()));
  program(context);
  const auto half = wide_gradients.begin() + s.mlp * s.hidden;
  results.dgate.assign(wide_gradients.begin(), half);
  results.dup.assign(half, wide_gradients.end());
  return results;
}

double relative_error(const std::vector<double>& ours, const std::vector<double>& exact) {
  EXPECT_EQ(ours.size(), exact.size());
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(ours[i] - exact[i], 2);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

// Three products and a gate lie behind each result: f32 rounds each sum by about sqrt(depth) 2^-24, bf16 each
// element by 2^-9.
TEST(Mlp, IsThePlainComputation) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const double bound = dtype == DType::f32 ? 2e-6 : 1.5e-2;
    for (const Sizes& s : {Sizes{.dtype = dtype}, Sizes{1, 8, 8, dtype}, Sizes{131, 17, 200, dtype},
                           Sizes{2, 130, 3, dtype}}) {
      const Inputs inputs(s);
      const Results exact = plain(s, inputs);
      for (const auto& [keep, gate_up] :
           {std::pair{false, GateUp::together}, {true, GateUp::together}, {true, GateUp::apart}}) {
        const Results ours = run(s, inputs, 32, keep, 2, gate_up);
        EXPECT_LT(relative_error(ours.y, exact.y), bound);
        EXPECT_LT(relative_error(ours.dx, exact.dx), bound);
        EXPECT_LT(relative_error(ours.dgate, exact.dgate), bound);
        EXPECT_LT(relative_error(ours.dup, exact.dup), bound);
        EXPECT_LT(relative_error(ours.ddown, exact.ddown), bound);
      }
    }
  }
}

TEST(Mlp, TilesKeepingAndThreadsDoNotChangeABit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Sizes s{.dtype = dtype};
    const Inputs inputs(s);
    const Results expected = run(s, inputs, 0, true);
    for (const std::int64_t tile : {0, 1, 7, 64, 75, 1000}) {
      for (const bool keep : {false, true}) {
        EXPECT_TRUE(run(s, inputs, tile, keep) == expected) << "tile " << tile << ", kept " << keep;
      }
    }
    for (const int threads : {1, 3}) EXPECT_TRUE(run(s, inputs, 7, false, threads) == expected);
  }
}

// Wider than one pass of a product is deep, on both sides: Llama-70B's MLP, and a hidden size past it.
TEST(Mlp, IsThePlainComputationHoweverWide) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const double bound = dtype == DType::f32 ? 1e-5 : 1.5e-2;
    for (const Sizes& s : {Sizes{7, 8, 28'672, dtype}, Sizes{7, 20'000, 9, dtype}}) {
      const Inputs inputs(s);
      const Results exact = plain(s, inputs);
      const Results ours = run(s, inputs, 0, true);
      EXPECT_LT(relative_error(ours.y, exact.y), bound);
      EXPECT_LT(relative_error(ours.dx, exact.dx), bound);
      EXPECT_LT(relative_error(ours.dgate, exact.dgate), bound);
      EXPECT_LT(relative_error(ours.dup, exact.dup), bound);
      EXPECT_LT(relative_error(ours.ddown, exact.ddown), bound);
      for (const std::int64_t tile : {0, 1, 3}) {
        for (const bool keep : {false, true}) {
          EXPECT_TRUE(run(s, inputs, tile, keep) == ours) << "tile " << tile << ", kept " << keep;
        }
      }
      EXPECT_TRUE(run(s, inputs, 3, false, 1) == ours);
    }
  }
}

TEST(Mlp, NoTokensAreNoWork) {
  const Sizes s{.tokens = 0};
  const Inputs inputs(s);
  const Results results = run(s, inputs, 16, false);
  EXPECT_EQ(results.dgate, inputs.dgate);
  EXPECT_EQ(results.ddown, inputs.ddown);
}

// A rehearsal refuses what the run would.
std::string refusal(const Sizes& s, std::int64_t tile, std::int64_t y_width, std::int64_t gradient_width) {
  try {
    static_cast<void>(rehearse([&](Context& context) {
      context.phase(Phase::step, [&] {
        const auto given = [&](const Shape& shape, DType dtype) {
          return context.allocate({.name = "given", .dtype = dtype, .shape = shape});
        };
        const Tensor x = given({s.tokens, s.hidden}, s.dtype);
        const Tensor gate = given({s.mlp, s.hidden}, s.dtype);
        const Tensor down = given({s.hidden, s.mlp}, s.dtype);
        const Tensor y = given({s.tokens, y_width}, s.dtype);
        const Tensor dgate = given({s.mlp, gradient_width}, DType::f32);
        const Tensor ddown = given({s.hidden, s.mlp}, DType::f32);
        const MlpForward forward{
            .x = x, .weights = {.gate = gate, .up = gate, .down = down}, .y = y, .gate_up = {}};
        mlp_forward(context, forward, tile);
        mlp_backward(context,
                     {.forward = forward,
                      .y_gradient = x,
                      .x_gradient = y,
                      .gradients = {.gate = dgate, .up = dgate, .down = ddown}},
                     tile);
      });
    }));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Mlp, TheRehearsalRefusesWhatTheRunWould) {
  using testing::HasSubstr;
  EXPECT_EQ(refusal({}, 16, 40, 40), "");
  EXPECT_THAT(refusal({}, -1, 40, 40), HasSubstr("-1"));
  EXPECT_THAT(refusal({}, 16, 41, 40), HasSubstr("[75, 41]"));
  EXPECT_THAT(refusal({}, 16, 40, 39), HasSubstr("[56, 39]"));
  // Every width is accepted.
  EXPECT_EQ(refusal({.mlp = 100'000, .dtype = DType::bf16}, 16, 40, 40), "");
  EXPECT_EQ(refusal({.mlp = 100'000}, 16, 40, 40), "");
}

}  // namespace
}  // namespace headroom
