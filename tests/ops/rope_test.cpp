#include "headroom/ops/rope.h"

#include <gmock/gmock.h>

#include <limits>

#include "ops/cases.h"
#include "ops/cpu/kernels.h"

namespace headroom {
namespace {

using testing::HasSubstr;

struct Sizes {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;
};

const RopeSettings kStretched{
    .theta = 1e6, .kind = RopeKind::yarn, .factor = 4, .original_positions = 32'768};

// The definition, in double or in float; the angle is exact in both.
template <class Real>
Values plain(Sizes sizes, const Values& x, const std::vector<std::int32_t>& positions,
             const RopeFrequencies& frequencies, bool backward) {
  Values result = x;
  for (std::int64_t row = 0; row < sizes.tokens * sizes.heads; ++row) {
    for (int i = 0; i < frequencies.half; ++i) {
      const auto a = static_cast<std::size_t>(row * sizes.head_dim + i);
      const std::size_t b = a + static_cast<std::size_t>(frequencies.half);
      const long double angle =
          static_cast<long double>(positions[static_cast<std::size_t>(row / sizes.heads)]) *
          frequencies.inverse[i];
      const auto c = static_cast<Real>(std::cos(angle) * frequencies.magnitude);
      const auto s = static_cast<Real>(std::sin(angle) * (backward ? -1 : 1) * frequencies.magnitude);
      result[a] = static_cast<Real>(x[a]) * c - static_cast<Real>(x[b]) * s;
      result[b] = static_cast<Real>(x[b]) * c + static_cast<Real>(x[a]) * s;
    }
  }
  return result;
}

Values run(Sizes sizes, const Values& x, const std::vector<std::int32_t>& positions,
           const RopeFrequencies& frequencies, DType dtype, Pass pass, int threads, std::int64_t gap) {
  Values result;
  run_phase(threads, [&](Context& context) {
    const Placed placed(context, {sizes.tokens, sizes.heads, sizes.head_dim}, dtype, x, gap);
    const PlacedIds ids(context, positions);
    rope(context, placed.view, ids, frequencies, pass);
    result = placed.read(context);
  });
  return result;
}

std::vector<std::int32_t> some_positions(std::int64_t tokens) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(Random(8).below(i, i % 2 == 0 ? 100 : 10'000'000));
  }
  return positions;
}

class Rope : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, Rope, all_levels());

TEST_P(Rope, WithinThePlainLoop) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t head_dim : {2, 6, 64, 80, 130, 256}) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const Sizes sizes{41, 3, head_dim};
        const RopeFrequencies frequencies = rope_frequencies(kStretched, head_dim);
        const std::vector<std::int32_t> positions = some_positions(sizes.tokens);
        const Values x = random_values(sizes.tokens * sizes.heads * head_dim, dtype, 1);
        const bool backward = pass == Pass::backward;
        expect_close(run(sizes, x, positions, frequencies, dtype, pass, 2, head_dim == 6 ? 0 : 7),
                     plain<float>(sizes, x, positions, frequencies, backward),
                     plain<double>(sizes, x, positions, frequencies, backward), 2, dtype,
                     fmt::format("{} head_dim {} backward {}", name(dtype), head_dim, backward));
      }
    }
  }
}

// <rope(x), y> = <x, rope backward(y)>: backward is the transpose, whatever the magnitude.
TEST_P(Rope, BackwardIsTheTranspose) {
  const Sizes sizes{9, 2, 64};
  const RopeFrequencies frequencies = rope_frequencies(kStretched, 64);
  const std::vector<std::int32_t> positions = some_positions(sizes.tokens);
  const Values x = random_values(9 * 2 * 64, DType::f32, 1);
  const Values y = random_values(9 * 2 * 64, DType::f32, 2);
  const Values turned = run(sizes, x, positions, frequencies, DType::f32, Pass::forward, 2, 0);
  const Values back = run(sizes, y, positions, frequencies, DType::f32, Pass::backward, 2, 0);
  double left = 0;
  double right = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    left += turned[i] * y[i];
    right += x[i] * back[i];
  }
  EXPECT_NEAR(left, right, 1e-4);
}

TEST_P(Rope, ReferenceAgreesWithFiniteDifferences) {
  const Sizes sizes{2, 1, 6};
  const RopeFrequencies frequencies = rope_frequencies(kStretched, 6);
  const std::vector<std::int32_t> positions = {3, 1'000'000};
  Values x = random_values(12, DType::f32, 1);
  const Values dy = random_values(12, DType::f32, 2);
  const Values dx = plain<double>(sizes, dy, positions, frequencies, true);
  const auto objective = [&] {
    const Values y = plain<double>(sizes, x, positions, frequencies, false);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(slope(x, i, objective), dx[i], 1e-8);
}

TEST_P(Rope, SameBitsOnAnyThreadCount) {
  const Sizes sizes{500, 4, 66};
  const RopeFrequencies frequencies = rope_frequencies({}, 66);
  const std::vector<std::int32_t> positions = some_positions(sizes.tokens);
  const Values x = random_values(500 * 4 * 66, DType::f32, 1);
  const Values one = run(sizes, x, positions, frequencies, DType::f32, Pass::forward, 1, 0);
  EXPECT_EQ(one, run(sizes, x, positions, frequencies, DType::f32, Pass::forward, 2, 0));
  EXPECT_EQ(one, run(sizes, x, positions, frequencies, DType::f32, Pass::forward, 3, 0));
}

TEST_P(Rope, NoTokens) {
  EXPECT_TRUE(run({0, 2, 8}, {}, {}, rope_frequencies({}, 8), DType::bf16, Pass::forward, 2, 0).empty());
}

// cos and sin against long double, in units of the last place of f32.
double units_off(float actual, long double exact) {
  const float nearest = std::abs(static_cast<float>(exact));
  const float next = std::nextafter(nearest, std::numeric_limits<float>::infinity());
  return static_cast<double>(std::abs(actual - exact) / (static_cast<long double>(next) - nearest));
}

TEST_P(Rope, AnglesAreExactAtEveryPosition) {
  const cpu::OpKernels& kernels = cpu::op_kernels(describe_cpu().simd);
  double worst = 0;
  for (const double theta : {1e4, 5e5, 1e6, 1e7}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      const RopeFrequencies frequencies = rope_frequencies({.theta = theta}, head_dim);
      std::vector<std::int32_t> positions = {0, 1, 2, 3, 1'000'000, 10'000'000, 2'147'483'646, 2'147'483'647,
                                             -5};
      for (std::uint64_t i = 0; i < 300; ++i) {
        positions.push_back(static_cast<std::int32_t>(Random(1).below(i, 1ULL << (1 + i % 31))));
        positions.push_back(static_cast<std::int32_t>(9'999'900 + i));
      }
      for (const std::int32_t position : positions) {
        float cosine[kMaxRopeHalf];
        float sine[kMaxRopeHalf];
        kernels.rope_angles(frequencies, position, cosine, sine);
        for (int i = 0; i < frequencies.half; ++i) {
          const long double angle = static_cast<long double>(position) * frequencies.inverse[i];
          worst = std::max(worst, units_off(cosine[i], std::cos(angle)));
          worst = std::max(worst, units_off(sine[i], std::sin(angle)));
        }
      }
    }
  }
  RecordProperty("worst_units", std::to_string(worst));
  EXPECT_LE(worst, 0.51);
}

// What Hugging Face transformers 5 computes, in f32.
TEST(RopeFrequencies, AsTransformers) {
  struct Case {
    RopeSettings settings;
    std::int64_t head_dim;
    double magnitude;
    std::vector<std::pair<int, double>> inverse;
  };
  const std::vector<Case> cases = {
      {{.kind = RopeKind::linear, .factor = 4},
       64,
       1,
       {{0, 0.25}, {1, 0.18747355043888092}, {16, 0.0024999999441206455}, {31, 3.333803761051968e-05}}},
      {{.theta = 5e5, .kind = RopeKind::llama3, .factor = 8, .original_positions = 8192},
       128,
       1,
       {{1, 0.8146172165870667},
        {16, 0.03760603070259094},
        {32, 0.0005248460220173001},
        {36, 7.784655463183299e-05},
        {48, 6.647869668086059e-06},
        {63, 3.068925877869333e-07}}},
      {kStretched,
       128,
       1.138629436111989,
       {{1, 0.8058422207832336},
        {16, 0.03162277862429619},
        {32, 0.0006029411451891065},
        {36, 0.0001798411540221423},
        {63, 3.102344408034696e-07}}},
      {{.theta = 15e4, .kind = RopeKind::yarn, .factor = 32, .original_positions = 4096, .truncate = false},
       64,
       1.3465735902799727,
       {{8, 0.05081327259540558}, {16, 0.0004564839182421565}, {20, 1.818833698052913e-05}}},
      {{.kind = RopeKind::yarn,
        .factor = 40,
        .original_positions = 4096,
        .mscale = 1,
        .mscale_all_dim = 0.707},
       64,
       1.0857263992561355,
       {{16, 0.005500000435858965}, {20, 0.0007905694073997438}, {31, 3.3338035336782923e-06}}},
      {{.kind = RopeKind::yarn, .factor = 40, .original_positions = 4096, .attention_factor = 1.25},
       64,
       1.25,
       {{1, 0.7498942017555237}}}};
  for (const Case& c : cases) {
    const RopeFrequencies frequencies = rope_frequencies(c.settings, c.head_dim);
    EXPECT_EQ(frequencies.half, c.head_dim / 2);
    EXPECT_NEAR(frequencies.magnitude, c.magnitude, 1e-14);
    for (const auto& [i, expected] : c.inverse) {
      EXPECT_NEAR(frequencies.inverse[i] / expected, 1, 1e-6) << c.head_dim << " at " << i;
    }
  }
  EXPECT_EQ(rope_frequencies({}, 128).inverse[32], 0.01);
  EXPECT_EQ(rope_frequencies({}, 128).magnitude, 1);
}

std::string message_of(const RopeSettings& settings, std::int64_t head_dim) {
  try {
    static_cast<void>(rope_frequencies(settings, head_dim));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// As in transformers, the range of pairs that are neither kept nor stretched ends at head_dim - 1, however
// few turns the slowest pair makes.
TEST(RopeFrequencies, YarnsRangeEndsAtTheLastElementOfAHead) {
  const RopeSettings settings{.theta = 2,
                              .kind = RopeKind::yarn,
                              .factor = 4,
                              .original_positions = 1'000'000,
                              .beta_fast = 1e5,  // pair 2.7, rounded down
                              .beta_slow = 1};   // pair 69.1
  const RopeFrequencies frequencies = rope_frequencies(settings, 8);
  for (int pair = 0; pair < 4; ++pair) {
    const double plain = std::pow(2.0, -pair / 4.0);
    const double stretched = std::clamp((pair - 2) / (7.0 - 2), 0.0, 1.0);
    EXPECT_DOUBLE_EQ(frequencies.inverse[pair], plain * (1 - stretched) + plain / 4 * stretched) << pair;
  }
}

TEST(RopeFrequencies, NameWhatIsWrong) {
  EXPECT_THAT(message_of({}, 63), HasSubstr("head_dim 63 is not an even number from 2 to 256"));
  EXPECT_THAT(message_of({}, 258), HasSubstr("head_dim 258"));
  EXPECT_THAT(message_of({.theta = 0}, 64), HasSubstr("theta 0 is not above 1"));
  EXPECT_THAT(message_of({.kind = RopeKind::linear, .factor = 0.5}, 64), HasSubstr("factor 0.5"));
  EXPECT_THAT(message_of({.kind = RopeKind::yarn, .factor = 2}, 64), HasSubstr("original_positions 0"));
  EXPECT_THAT(message_of({.kind = RopeKind::llama3,
                          .factor = 2,
                          .original_positions = 8,
                          .low_frequency_factor = 4,
                          .high_frequency_factor = 4},
                         64),
              HasSubstr("do not rise"));
}

TEST(RopeArguments, NameWhatIsWrong) {
  Context context(DeviceDescription{.name = "made up"});
  const TensorView x(nullptr, DType::f32, {4, 2, 64});
  const TensorView positions(nullptr, DType::i32, {4});
  EXPECT_NO_THROW(rope(context, x, positions, rope_frequencies({}, 64), Pass::forward));
  try {
    rope(context, x, positions, rope_frequencies({}, 32), Pass::forward);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rope: x has heads of 64 elements, the frequencies are for 32");
  }
  const TensorView short_positions(nullptr, DType::i32, {3});
  EXPECT_THROW(rope(context, x, short_positions, rope_frequencies({}, 64), Pass::forward), Error);
}

}  // namespace
}  // namespace headroom
