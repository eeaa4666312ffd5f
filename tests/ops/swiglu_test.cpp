#include "headroom/ops/swiglu.h"

#include <limits>

#include "ops/cases.h"

namespace headroom {
namespace {

struct Results {
  Values act;
  Values dgate;
  Values dup;
};

template <class Real>
Results plain(const Values& gate, const Values& up, const Values& dact) {
  Results results;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const auto g = static_cast<Real>(gate[i]);
    const auto u = static_cast<Real>(up[i]);
    const auto d = static_cast<Real>(dact[i]);
    const Real s = 1 / (1 + std::exp(-g));
    results.act.push_back(g * s * u);
    results.dgate.push_back(d * u * s * (1 + g * (1 - s)));
    results.dup.push_back(d * g * s);
  }
  return results;
}

Results run(const Shape& shape, const Values& gate, const Values& up, const Values& dact, DType dtype,
            std::int64_t gap, bool in_place, int threads) {
  Results results;
  run_phase(threads, [&](Context& context) {
    const Placed g(context, shape, dtype, gate, gap);
    const Placed u(context, shape, dtype, up, gap == 0 ? 0 : gap + 1);
    const Placed a(context, shape, dtype, gap);
    swiglu_forward(context, g.view, u.view, a.view);
    const Placed d(context, shape, dtype, dact, 2 * gap);
    const Placed dg(context, shape, dtype, gap);
    const Placed du(context, shape, dtype, gap);
    const Placed& to_gate = in_place ? g : dg;
    const Placed& to_up = in_place ? u : du;
    swiglu_backward(context, {.gate = g.view,
                              .up = u.view,
                              .act_gradient = d.view,
                              .gate_gradient = to_gate.view,
                              .up_gradient = to_up.view,
                              .act = in_place ? d.view : TensorView()});
    results = {a.read(context), to_gate.read(context), to_up.read(context)};
    const Values again = d.read(context);
    EXPECT_EQ(again, in_place ? results.act : context.phantom() ? Values() : dact);
  });
  return results;
}

class Swiglu : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, Swiglu, all_levels());

TEST_P(Swiglu, WithinThePlainLoop) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t dim : kOddSizes) {
      for (const std::int64_t gap : {0, 3}) {
        const Shape shape{37, dim};
        Values gate = random_values(shape.elements(), dtype, 1);
        for (double& g : gate) g = rounded(4 * g, dtype);
        const Values up = random_values(shape.elements(), dtype, 2);
        const Values dact = random_values(shape.elements(), dtype, 3);
        const Results exact = plain<double>(gate, up, dact);
        const Results loop = plain<float>(gate, up, dact);
        const std::string what = fmt::format("{} dim {} gap {}", name(dtype), dim, gap);
        const Results actual = run(shape, gate, up, dact, dtype, gap, false, 2);
        expect_close(actual.act, loop.act, exact.act, 2, dtype, what + " act");
        expect_close(actual.dgate, loop.dgate, exact.dgate, 3, dtype, what + " dgate");
        expect_close(actual.dup, loop.dup, exact.dup, 3, dtype, what + " dup");
        const Results in_place = run(shape, gate, up, dact, dtype, gap, true, 3);
        EXPECT_EQ(in_place.dgate, actual.dgate) << what;
        EXPECT_EQ(in_place.dup, actual.dup) << what;
      }
    }
  }
}

TEST_P(Swiglu, ReferenceAgreesWithFiniteDifferences) {
  Values gate = random_values(9, DType::f32, 1);
  Values up = random_values(9, DType::f32, 2);
  const Values dact = random_values(9, DType::f32, 3);
  const Results exact = plain<double>(gate, up, dact);
  const auto objective = [&] {
    const Values act = plain<double>(gate, up, dact).act;
    double sum = 0;
    for (std::size_t i = 0; i < act.size(); ++i) sum += act[i] * dact[i];
    return sum;
  };
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_NEAR(slope(gate, i, objective), exact.dgate[i], 1e-9);
    EXPECT_NEAR(slope(up, i, objective), exact.dup[i], 1e-9);
  }
}

TEST_P(Swiglu, FarFromZero) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Values gate = {-1e30, -1000, -90, -87, 87, 90, 1000, 1e30, kNaN};
  const Values ones(gate.size(), 1.0);
  const Results results = run({1, 9}, gate, ones, ones, DType::f32, 0, false, 1);
  for (std::size_t i = 0; i < 8; ++i) {
    const double expected = gate[i] < 0 ? 0 : rounded(gate[i], DType::f32);
    EXPECT_NEAR(results.act[i], expected, 1e-35) << gate[i];
    EXPECT_NEAR(results.dup[i], expected, 1e-35) << gate[i];
    EXPECT_NEAR(results.dgate[i], gate[i] < 0 ? 0 : 1, 1e-35) << gate[i];
  }
  for (const double value : {results.act[8], results.dgate[8], results.dup[8]})
    EXPECT_TRUE(std::isnan(value));
}

TEST_P(Swiglu, SameBitsOnAnyThreadCount) {
  const Shape shape{300, 701};
  const Values gate = random_values(shape.elements(), DType::f32, 1);
  const Values up = random_values(shape.elements(), DType::f32, 2);
  const Values dact = random_values(shape.elements(), DType::f32, 3);
  const Results one = run(shape, gate, up, dact, DType::f32, 0, false, 1);
  for (const int threads : {2, 3}) {
    const Results more = run(shape, gate, up, dact, DType::f32, threads, false, threads);
    EXPECT_EQ(one.act, more.act);
    EXPECT_EQ(one.dgate, more.dgate);
    EXPECT_EQ(one.dup, more.dup);
  }
}

TEST_P(Swiglu, NoTokens) {
  EXPECT_TRUE(run({0, 5}, {}, {}, {}, DType::f16, 0, false, 2).act.empty());
}

TEST(SwigluArguments, NameWhatIsWrong) {
  Context context(DeviceDescription{.name = "made up"});
  const TensorView gate(nullptr, DType::f32, {4, 8});
  const TensorView narrow(nullptr, DType::f32, {4, 7});
  EXPECT_NO_THROW(swiglu_forward(context, gate, gate, gate));
  try {
    swiglu_forward(context, gate, narrow, gate);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "swiglu: up has shape [4, 7], not [4, 8]");
  }
}

}  // namespace
}  // namespace headroom
