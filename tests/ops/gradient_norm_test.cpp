#include "headroom/ops/gradient_norm.h"

#include <gmock/gmock.h>

#include <limits>

#include "ops/cases.h"

namespace headroom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double squares(const Values& values, DType result_dtype, Store store, double before, int threads,
               DType dtype = DType::f32) {
  double result = 0;
  run_phase(threads, [&](Context& context) {
    const Placed x(context, {static_cast<std::int64_t>(values.size())}, dtype, values);
    const Placed sum(context, {1}, result_dtype, Values{before});
    sum_of_squares(context, x.view, sum.view, store);
    const Values read = sum.read(context);
    if (!context.phantom()) result = read[0];
  });
  return result;
}

class GradientNorm : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, GradientNorm, all_levels());

TEST_P(GradientNorm, SumOfSquares) {
  for (const std::int64_t count : {0, 1, 7, 63, 65, 1000, 200'003}) {
    const Values values = random_values(count, DType::f32, 1);
    long double sum = 0;
    for (const double value : values) sum += static_cast<long double>(value) * value;
    const auto expected = static_cast<double>(sum);
    EXPECT_NEAR(squares(values, DType::f64, Store::overwrite, 5, 2), expected, 1e-13 * expected);
    EXPECT_NEAR(squares(values, DType::f64, Store::add, 5, 2), 5 + expected, 1e-13 * (5 + expected));
    EXPECT_NEAR(squares(values, DType::f32, Store::overwrite, 5, 2), expected, 1e-7 * expected);
  }
  const Values values = random_values(200'003, DType::bf16, 1);
  double expected = 0;
  for (const double value : values) expected += value * value;
  EXPECT_NEAR(squares(values, DType::f64, Store::overwrite, 5, 2, DType::bf16), expected, 1e-12 * expected);
  // Squares past f32 are counted, in double.
  EXPECT_NEAR(squares({1e30, 1e-30}, DType::f64, Store::overwrite, 0, 1), 1e60, 1e53);
}

TEST_P(GradientNorm, SameBitsOnAnyThreadCount) {
  const Values values = random_values(300'007, DType::f32, 2);
  const double one = squares(values, DType::f64, Store::overwrite, 0, 1);
  EXPECT_EQ(one, squares(values, DType::f64, Store::overwrite, 0, 2));
  EXPECT_EQ(one, squares(values, DType::f64, Store::overwrite, 0, 3));
}

struct Clip {
  double norm;
  double factor;
  int finite;
};

Clip clip(double sum, const Clipping& clipping, DType dtype = DType::f64) {
  Clip result{};
  run_phase(1, [&](Context& context) {
    const Placed squared(context, {1}, dtype, Values{sum});
    const Placed norm(context, {1}, DType::f32);
    const Placed factor(context, {1}, DType::f32);
    const PlacedIds finite(context, {-1});
    clip_factor(context,
                {.sum_of_squares = squared.view, .norm = norm.view, .factor = factor.view, .finite = finite},
                clipping);
    const Values norms = norm.read(context);
    const Values factors = factor.read(context);
    const std::vector<std::int32_t> flags = finite.read(context);
    if (!context.phantom()) result = {norms[0], factors[0], flags[0]};
  });
  return result;
}

TEST(ClipFactor, AsTorch) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Clip clipped = clip(16, {.max_norm = 1}, dtype);
    EXPECT_EQ(clipped.norm, 4);
    EXPECT_EQ(clipped.factor, static_cast<float>(1 / (4 + 1e-6)));
    EXPECT_EQ(clipped.finite, 1);
  }
  EXPECT_EQ(clip(16, {.max_norm = 5}).factor, 1);
  EXPECT_EQ(clip(0, {.max_norm = 1}).factor, 1);
  EXPECT_EQ(clip(16, {.max_norm = kInfinity}).factor, 1);
}

// Gradients times a scale have that much of the norm, and are clipped by it.
TEST(ClipFactor, Scaled) {
  const Clip within = clip(16, {.max_norm = 1, .scale = 0.125});
  EXPECT_EQ(within.norm, 0.5);
  EXPECT_EQ(within.factor, 0.125);
  const Clip clipped = clip(16, {.max_norm = 1, .scale = 3});
  EXPECT_EQ(clipped.norm, 12);
  EXPECT_EQ(clipped.factor, static_cast<float>(3 / (12 + 1e-6)));
  EXPECT_EQ(clip(0, {.max_norm = 1, .scale = 0.25}).factor, 0.25);
  EXPECT_EQ(clip(16, {.max_norm = kInfinity, .scale = 0.25}).factor, 0.25);
}

TEST(ClipFactor, NotFinite) {
  for (const double sum : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const double max_norm : {1.0, kInfinity}) {
      const Clip clipped = clip(sum, {.max_norm = max_norm, .scale = 0.5});
      EXPECT_EQ(clipped.factor, 0);
      EXPECT_EQ(clipped.finite, 0);
      EXPECT_FALSE(std::isfinite(clipped.norm));
    }
  }
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(clip(1, {.max_norm = wrong}), Error);
    EXPECT_THROW(clip(1, {.max_norm = 1, .scale = wrong}), Error);
  }
  EXPECT_THROW(clip(1, {.max_norm = 1, .scale = kInfinity}), Error);
}

// One element that is not finite, and the update leaves everything: no host in between.
TEST_P(GradientNorm, UpdateAfterAGradientThatIsNotFinite) {
  for (const double bad : {kInfinity, std::numeric_limits<double>::quiet_NaN(), 0.5}) {
    run_phase(2, [&](Context& context) {
      Values gradients = random_values(1000, DType::f32, 1);
      gradients[777] = bad;
      const Values start = random_values(1000, DType::f32, 2);
      const Placed gradient(context, {1000}, DType::f32, gradients);
      const Placed master(context, {1000}, DType::f32, start);
      const Placed first(context, {1000}, DType::f32, start);
      const Placed second(context, {1000}, DType::f32, Values(1000, 1.0));
      const Placed weight(context, {1000}, DType::bf16, Values(1000, 3.0));
      const Placed sum(context, {1}, DType::f64);
      const Placed norm(context, {1}, DType::f32);
      const Placed factor(context, {1}, DType::f32);
      const PlacedIds finite(context, {-1});
      sum_of_squares(context, gradient.view, sum.view, Store::overwrite);
      clip_factor(context,
                  {.sum_of_squares = sum.view, .norm = norm.view, .factor = factor.view, .finite = finite},
                  {.max_norm = 1});
      adamw(context,
            {.master = master.view,
             .gradient = gradient.view,
             .first = first.view,
             .second = second.view,
             .weight = weight.view,
             .factor = factor.view},
            {});
      const Values after = master.read(context);
      const Values moments = first.read(context);
      const Values squares = second.read(context);
      const Values copies = weight.read(context);
      if (context.phantom()) return;
      if (std::isfinite(bad)) {
        EXPECT_NE(after, start);
        return;
      }
      EXPECT_EQ(after, start);
      EXPECT_EQ(moments, start);
      EXPECT_EQ(squares, Values(1000, 1.0));
      EXPECT_EQ(copies, Values(1000, 3.0));
    });
  }
}

}  // namespace
}  // namespace headroom
