#include "headroom/ops/adamw.h"

#include "ops/cases.h"

namespace headroom {
namespace {

constexpr int kSteps = 5;
const AdamW kSettings{
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

struct State {
  Values master;
  Values first;
  Values second;
  Values weight;
};

Values gradient(std::int64_t count, int step) {
  return random_values(count, DType::f32, 10 + static_cast<std::uint64_t>(step));
}

// torch.optim.AdamW, transcribed.
template <class Real>
State plain(std::int64_t count, const std::vector<float>& factors) {
  State state{random_values(count, DType::f32, 1),
              Values(static_cast<std::size_t>(count)),
              Values(static_cast<std::size_t>(count)),
              {}};
  for (int step = 1; step <= kSteps; ++step) {
    const auto factor = static_cast<Real>(factors[static_cast<std::size_t>(step - 1)]);
    if (factor == 0) continue;
    const Values gradients = gradient(count, step);
    const auto bias1 = static_cast<Real>(1 - std::pow(kSettings.beta1, step));
    const auto bias2 = static_cast<Real>(1 - std::pow(kSettings.beta2, step));
    const auto rate = static_cast<Real>(kSettings.learning_rate);
    const auto beta1 = static_cast<Real>(kSettings.beta1);
    const auto beta2 = static_cast<Real>(kSettings.beta2);
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      const Real g = factor * static_cast<Real>(gradients[i]);
      Real p = static_cast<Real>(state.master[i]);
      p *= 1 - rate * static_cast<Real>(kSettings.weight_decay);
      const Real m = beta1 * static_cast<Real>(state.first[i]) + (1 - beta1) * g;
      const Real v = beta2 * static_cast<Real>(state.second[i]) + (1 - beta2) * g * g;
      const Real divisor = std::sqrt(v) / std::sqrt(bias2) + static_cast<Real>(kSettings.epsilon);
      p -= rate / bias1 * (m / divisor);
      state.master[i] = p;
      state.first[i] = m;
      state.second[i] = v;
    }
  }
  return state;
}

State run(std::int64_t count, DType weight_dtype, bool alias, const std::vector<float>& factors,
          int threads) {
  State state;
  run_phase(threads, [&](Context& context) {
    const Values zeros(static_cast<std::size_t>(count));
    const Placed master(context, {count}, DType::f32, random_values(count, DType::f32, 1));
    const Placed first(context, {count}, DType::f32, zeros);
    const Placed second(context, {count}, DType::f32, zeros);
    const Placed copy(context, {count}, weight_dtype);
    for (int step = 1; step <= kSteps; ++step) {
      const Placed gradients(context, {count}, DType::f32, gradient(count, step));
      const Placed factor(context, {1}, DType::f32, Values{factors[static_cast<std::size_t>(step - 1)]});
      AdamW settings = kSettings;
      settings.step = step;
      adamw(context,
            {.master = master.view,
             .gradient = gradients.view,
             .first = first.view,
             .second = second.view,
             .weight = alias ? master.view : copy.view,
             .factor = factor.view},
            settings);
    }
    state = {master.read(context), first.read(context), second.read(context), copy.read(context)};
  });
  return state;
}

class AdamWLevels : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, AdamWLevels, all_levels());

TEST_P(AdamWLevels, FiveSteps) {
  const std::vector<float> factors = {1, 0.5F, 1, 0.25F, 1};
  for (const std::int64_t count : kOddSizes) {
    const State exact = plain<double>(count, factors);
    const State loop = plain<float>(count, factors);
    for (const DType dtype : kFloating) {
      const State actual = run(count, dtype, false, factors, 2);
      const std::string what = fmt::format("{} of {}", count, name(dtype));
      expect_close(actual.master, loop.master, exact.master, 2, DType::f32, what + " master");
      expect_close(actual.first, loop.first, exact.first, 2, DType::f32, what + " first");
      expect_close(actual.second, loop.second, exact.second, 2, DType::f32, what + " second");
      EXPECT_EQ(actual.weight, rounded(actual.master, dtype)) << what;
    }
    EXPECT_EQ(run(count, DType::f32, true, factors, 2).master,
              run(count, DType::bf16, false, factors, 2).master);
  }
}

TEST_P(AdamWLevels, FactorZeroLeavesEverything) {
  const State before = run(65, DType::bf16, false, {0, 0, 0, 0, 0}, 2);
  EXPECT_EQ(before.master, random_values(65, DType::f32, 1));
  EXPECT_EQ(before.first, Values(65));
  EXPECT_EQ(before.second, Values(65));
  const State exact = plain<double>(65, {1, 0, 1, 1, 0});
  const State loop = plain<float>(65, {1, 0, 1, 1, 0});
  const State actual = run(65, DType::bf16, false, {1, 0, 1, 1, 0}, 2);
  expect_close(actual.master, loop.master, exact.master, 2, DType::f32, "master");
  EXPECT_EQ(actual.weight, rounded(actual.master, DType::bf16));
}

TEST_P(AdamWLevels, SameBitsOnAnyThreadCount) {
  const std::vector<float> factors(kSteps, 1.0F);
  const State one = run(100'003, DType::bf16, false, factors, 1);
  for (const int threads : {2, 3}) {
    const State more = run(100'003, DType::bf16, false, factors, threads);
    EXPECT_EQ(one.master, more.master);
    EXPECT_EQ(one.second, more.second);
    EXPECT_EQ(one.weight, more.weight);
  }
}

TEST(AdamWArguments, NameWhatIsWrong) {
  Context context(DeviceDescription{.name = "made up"});
  const TensorView state(nullptr, DType::f32, {4, 8});
  const TensorView one(nullptr, DType::f32, {1});
  const AdamWViews views{
      .master = state, .gradient = state, .first = state, .second = state, .weight = state, .factor = one};
  EXPECT_NO_THROW(adamw(context, views, {}));
  const auto message = [&](const AdamWViews& wrong, const AdamW& settings) -> std::string {
    try {
      adamw(context, wrong, settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(views, {.step = 0}), "adamw: step is 0; the first is 1");
  EXPECT_EQ(message(views, {.beta2 = 1}), "adamw: beta2 is 1; it goes from 0 to below 1");
  AdamWViews wrong = views;
  wrong.gradient = TensorView(nullptr, DType::bf16, {4, 8});
  EXPECT_EQ(message(wrong, {}), "adamw: gradient holds bf16, not f32");
  wrong = views;
  wrong.weight = one;
  EXPECT_EQ(message(wrong, {}), "adamw: weight has shape [1], not [4, 8]");
}

}  // namespace
}  // namespace headroom
