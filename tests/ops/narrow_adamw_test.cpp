// AdamW over a state of 16 or 8 bits: the bits of a plain loop on every device, right on average.
#include <gmock/gmock.h>

#include <functional>

#include "headroom/ops/adamw.h"
#include "ops/cases.h"
#include "ops/narrow_state.h"

namespace headroom {
namespace {

const AdamW kSettings{
    .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};

constexpr DType kMoments[] = {DType::bf16, DType::u8};

// Flat, as it lies in memory.
struct State {
  std::vector<std::uint16_t> weight, gradient;
  std::vector<std::byte> first, second;
  std::vector<std::byte> first_exponents, second_exponents;

  bool operator==(const State&) const = default;
};

std::uint16_t bits_of(double value) {
  return BFloat16(static_cast<float>(value)).bits;
}
float value_of(std::uint16_t bits) {
  return float_of_bits(std::uint32_t{bits} << 16);
}

State zero_moments(std::size_t count, DType moments) {
  State state;
  state.weight.resize(count);
  state.gradient.resize(count);
  state.first.resize(count * static_cast<std::size_t>(size_bytes(moments)));
  state.second = state.first;
  if (moments == DType::u8) state.first_exponents.resize((count + kMomentBlock - 1) / kMomentBlock);
  state.second_exponents = state.first_exponents;
  return state;
}

// Normal numbers of many sizes.
void set_gradients(State& state, std::uint64_t seed) {
  for (std::size_t i = 0; i < state.gradient.size(); ++i) {
    state.gradient[i] = bits_of(Random(seed).normal(i) * std::exp(-static_cast<double>(i % 17)));
  }
}

State random_state(std::size_t count, DType moments) {
  State state = zero_moments(count, moments);
  for (std::size_t i = 0; i < count; ++i) state.weight[i] = bits_of(Random(1).normal(i));
  set_gradients(state, 2);
  return state;
}

Moments moments_of(const State& state, std::size_t i) {
  if (state.first_exponents.empty()) {
    std::uint16_t first = 0;
    std::uint16_t second = 0;
    std::memcpy(&first, &state.first[2 * i], 2);
    std::memcpy(&second, &state.second[2 * i], 2);
    return {value_of(first), value_of(second)};
  }
  const auto code = [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); };
  return decode_moments({code(state.first[i]), code(state.second[i])},
                        code(state.first_exponents[i / kMomentBlock]),
                        code(state.second_exponents[i / kMomentBlock]));
}

// The device's update of [begin, begin + count) as a part of the flat buffer.
void update(State& state, const AdamW& settings, float factor_value, int threads, std::size_t begin,
            std::size_t count) {
  const bool eight = !state.first_exponents.empty();
  const auto elements = static_cast<std::int64_t>(count);
  const std::size_t size = eight ? 1 : 2;
  run_phase(threads, [&](Context& context) {
    std::vector<std::function<void()>> back;
    std::vector<Tensor> tensors;
    tensors.reserve(6);
    const auto place = [&](auto& values, DType dtype, std::size_t first, std::size_t bytes) -> TensorView {
      if (values.empty()) return {};
      const auto part = std::as_writable_bytes(std::span(values)).subspan(first, bytes);
      const Tensor& tensor = tensors.emplace_back(context.allocate(
          {.name = "part", .dtype = dtype, .shape = {static_cast<std::int64_t>(bytes) / size_bytes(dtype)}}));
      Staging(context, tensor.view().bytes()).upload(tensor, part);
      back.push_back(
          [&context, &tensor, part] { Staging(context, tensor.view().bytes()).download(part, tensor); });
      return tensor.view();
    };
    const std::size_t block = begin / kMomentBlock;
    const std::size_t blocks = (count + kMomentBlock - 1) / kMomentBlock;
    const DType moments = eight ? DType::u8 : DType::bf16;
    const Placed factor(context, {1}, DType::f32, Values{factor_value});
    const NarrowAdamWViews views{.weight = place(state.weight, DType::bf16, 2 * begin, 2 * count),
                                 .gradient = place(state.gradient, DType::bf16, 2 * begin, 2 * count),
                                 .first = place(state.first, moments, size * begin, size * count),
                                 .second = place(state.second, moments, size * begin, size * count),
                                 .first_exponents = place(state.first_exponents, DType::u8, block, blocks),
                                 .second_exponents = place(state.second_exponents, DType::u8, block, blocks),
                                 .factor = factor.view};
    EXPECT_EQ(views.weight.elements(), elements);
    adamw_narrow(context, views, settings, static_cast<std::int64_t>(begin));
    for (const auto& read : back) read();
  });
}

// The same, one element after the other.
void plain_update(State& state, const AdamW& settings, float factor) {
  const double bias1 = 1 - std::pow(settings.beta1, static_cast<double>(settings.step));
  const double bias2 = 1 - std::pow(settings.beta2, static_cast<double>(settings.step));
  const AdamWFactors factors{.decay = static_cast<float>(1 - settings.learning_rate * settings.weight_decay),
                             .beta1 = static_cast<float>(settings.beta1),
                             .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
                             .beta2 = static_cast<float>(settings.beta2),
                             .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
                             .step_size = static_cast<float>(settings.learning_rate / bias1),
                             .inverse_root_bias = static_cast<float>(1 / std::sqrt(bias2)),
                             .epsilon = static_cast<float>(settings.epsilon)};
  const Random random(kRoundingSeed, static_cast<std::uint64_t>(settings.step));
  const std::size_t count = state.weight.size();
  std::vector<Moments> after(count);
  std::vector<RoundingBits> bits(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = random.bits(i);
    bits[i] = {static_cast<std::uint32_t>(word & 0xffff), static_cast<std::uint32_t>(word >> 16 & 0xffff),
               static_cast<std::uint32_t>(word >> 32 & 0xffff)};
    after[i] = moments_of(state, i);
    const float weight =
        update_weight(factors, value_of(state.weight[i]), factor * value_of(state.gradient[i]), after[i]);
    state.weight[i] = round_to_bf16(weight, bits[i].weight);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (state.first_exponents.empty()) {
      const std::uint16_t first = round_to_bf16(after[i].first, bits[i].first);
      const std::uint16_t second = round_to_bf16(after[i].second, bits[i].second);
      std::memcpy(&state.first[2 * i], &first, 2);
      std::memcpy(&state.second[2 * i], &second, 2);
      continue;
    }
    std::uint32_t first = 0;
    std::uint32_t second = 0;
    const std::size_t block = i / kMomentBlock;
    for (std::size_t j = block * kMomentBlock; j < std::min<std::size_t>(count, (block + 1) * kMomentBlock);
         ++j) {
      first = std::max(first, float_bits(std::abs(after[j].first)));
      second = std::max(second, float_bits(after[j].second));
    }
    first = FirstMomentCode::block_exponent(first);
    second = SecondMomentCode::block_exponent(second);
    const EightBitMoments codes = encode_moments(after[i], first, second, bits[i]);
    state.first[i] = std::byte{codes.first};
    state.second[i] = std::byte{codes.second};
    state.first_exponents[block] = static_cast<std::byte>(first);
    state.second_exponents[block] = static_cast<std::byte>(second);
  }
}

class NarrowAdamW : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, NarrowAdamW, all_levels());

TEST_P(NarrowAdamW, HasTheBitsOfAPlainLoop) {
  for (const DType moments : kMoments) {
    for (const std::size_t count : std::initializer_list<std::size_t>{1, 63, 64, 65, 1000, 40'001}) {
      State expected = random_state(count, moments);
      State actual = expected;
      for (std::int64_t step = 1; step <= 4; ++step) {
        AdamW settings = kSettings;
        settings.step = step;
        const float factor = step == 3 ? 0.0F : 0.5F;  // which changes nothing
        for (State* state : {&expected, &actual})
          set_gradients(*state, 10 + static_cast<std::uint64_t>(step));
        if (factor > 0) plain_update(expected, settings, factor);
        update(actual, settings, factor, 2, 0, count);
        ASSERT_TRUE(actual == expected) << count << " of " << name(moments) << ", step " << step;
      }
    }
  }
}

TEST_P(NarrowAdamW, SameBitsInPiecesAndOnAnyThreadCount) {
  for (const DType moments : kMoments) {
    const State before = random_state(3000, moments);
    State whole = before;
    State pieces = before;
    State threads = before;
    update(whole, kSettings, 1, 1, 0, 3000);
    update(threads, kSettings, 1, 3, 0, 3000);
    EXPECT_TRUE(threads == whole);
    for (const std::size_t begin : std::initializer_list<std::size_t>{2048, 0, 64}) {
      const std::size_t end = begin == 2048 ? 3000 : begin == 0 ? 64 : 2048;
      update(pieces, kSettings, 1, 2, begin, end - begin);
    }
    EXPECT_TRUE(pieces == whole);
  }
}

// So many equal elements, each with random bits of its own: their mean is what f64 says, nearer than one of
// them can be.
TEST_P(NarrowAdamW, IsRightOnAverage) {
  constexpr std::size_t kCount = 20'000;
  for (const DType moments : kMoments) {
    State state = zero_moments(kCount, moments);
    std::ranges::fill(state.weight, bits_of(0.7));
    std::ranges::fill(state.gradient, bits_of(-0.013));
    double first = 0;
    double second = 0;
    double weight = value_of(bits_of(0.7));
    const double gradient = value_of(bits_of(-0.013));
    for (std::int64_t step = 1; step <= 3; ++step) {
      AdamW settings = kSettings;
      settings.step = step;
      update(state, settings, 1, 2, 0, kCount);
      first = 0.9 * first + 0.1 * gradient;
      second = 0.95 * second + 0.05 * gradient * gradient;
      const double bias1 = 1 - std::pow(0.9, static_cast<double>(step));
      const double bias2 = 1 - std::pow(0.95, static_cast<double>(step));
      weight = weight * (1 - 3e-4) - 3e-3 * (first / bias1) / (std::sqrt(second / bias2) + 1e-8);
    }
    double weights = 0;
    double firsts = 0;
    double seconds = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const Moments one = moments_of(state, i);
      weights += value_of(state.weight[i]) / static_cast<double>(kCount);
      firsts += one.first / static_cast<double>(kCount);
      seconds += one.second / static_cast<double>(kCount);
    }
    // A step of bf16 is 1/128 of a value at most, one of 8 bits an eighth; three roundings, four deviations.
    const double moment_step = moments == DType::bf16 ? 0x1p-7 : 0x1p-3;
    const double deviations = 4 * std::sqrt(3.0) / 2 / std::sqrt(static_cast<double>(kCount));
    EXPECT_NEAR(firsts, first, deviations * moment_step * std::abs(first)) << name(moments);
    EXPECT_NEAR(seconds, second, deviations * moment_step * second) << name(moments);
    // What moments' noise does to the quotient is second order: a hundredth of the way at most.
    EXPECT_NEAR(weights, weight, deviations * 0x1p-7 * weight + 1e-4) << name(moments);
  }
}

// Rounded to nearest, 0.999 v would be v again and stay there for good.
TEST_P(NarrowAdamW, SecondMomentsDecayByLessThanAStep) {
  constexpr std::size_t kCount = 4096;
  for (const DType moments : kMoments) {
    State state = zero_moments(kCount, moments);
    std::ranges::fill(state.gradient, bits_of(1));
    AdamW settings = kSettings;
    settings.beta2 = 0.999;
    update(state, settings, 1, 2, 0, kCount);
    std::ranges::fill(state.gradient, std::uint16_t{0});
    for (settings.step = 2; settings.step <= 60; ++settings.step) update(state, settings, 1, 2, 0, kCount);
    double mean = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      mean += static_cast<double>(moments_of(state, i).second) / static_cast<double>(kCount);
    }
    EXPECT_NEAR(mean / 1e-3, std::pow(0.999, 59), 0.006) << name(moments);
  }
}

TEST(MomentCode, KeepsWhatItCanHold) {
  const auto check_all = []<class Code>(Code, std::uint32_t codes) {
    for (const std::uint32_t exponent : {40U, 127U, 254U}) {
      for (std::uint32_t code = 0; code < codes; ++code) {
        const float value = Code::decode(code, exponent);
        for (const std::uint32_t random : {0U, 0xffffU}) {
          EXPECT_EQ(Code::encode(float_bits(value), exponent, random), code) << exponent;
        }
        if (code == 0) continue;
        EXPECT_GT(value, Code::decode(code - 1, exponent));
      }
    }
  };
  check_all(FirstMomentCode(), 128);
  check_all(SecondMomentCode(), 256);
}

TEST(MomentCode, TheLargestOfABlockIsNotCutOff) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto value = static_cast<float>(std::exp(40 * (Random(3).uniform(i) - 0.5)));
    const std::uint32_t exponent = FirstMomentCode::block_exponent(float_bits(value));
    const std::uint32_t down = FirstMomentCode::encode(float_bits(value), exponent, 0);
    const std::uint32_t up = FirstMomentCode::encode(float_bits(value), exponent, 0xffff);
    ASSERT_LT(up, 128U) << value;
    EXPECT_LE(FirstMomentCode::decode(down, exponent), value);
    EXPECT_GE(FirstMomentCode::decode(up, exponent) * (1 + 1e-5F), value);
  }
}

TEST(MomentCode, ASecondMomentAboveZeroStaysAbove) {
  const std::uint32_t exponent = SecondMomentCode::block_exponent(float_bits(1e6F));
  for (const float small : {1e-30F, 1e-12F, 1e-5F}) {
    const EightBitMoments codes = encode_moments({0, small}, 0, exponent, {0, 0, 0});
    EXPECT_GT(decode_moments(codes, 0, exponent).second, 0.0F) << small;
  }
  EXPECT_EQ(encode_moments({0, 0}, 0, exponent, {0, 0xffff, 0xffff}).second, 0);
}

TEST(NarrowAdamWArguments, NameWhatIsWrong) {
  Context context(DeviceDescription{.name = "made up"});
  const TensorView flat(nullptr, DType::bf16, {130});
  const TensorView codes(nullptr, DType::u8, {130});
  const TensorView blocks(nullptr, DType::u8, {3});
  const TensorView one(nullptr, DType::f32, {1});
  const NarrowAdamWViews views{.weight = flat,
                               .gradient = flat,
                               .first = codes,
                               .second = codes,
                               .first_exponents = blocks,
                               .second_exponents = blocks,
                               .factor = one};
  const auto message = [&](const NarrowAdamWViews& wrong, std::int64_t first_element) -> std::string {
    try {
      adamw_narrow(context, wrong, {}, first_element);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(views, 128), "");
  EXPECT_EQ(message(views, 32), "adamw_narrow: first_element is 32; it has to be a multiple of 64");
  NarrowAdamWViews wrong = views;
  wrong.second = flat;
  EXPECT_EQ(message(wrong, 0), "adamw_narrow: second holds bf16, not u8");
  wrong = views;
  wrong.second_exponents = codes;
  EXPECT_EQ(message(wrong, 0), "adamw_narrow: second_exponents has shape [130], not [3]");
  wrong = views;
  wrong.gradient = TensorView(nullptr, DType::f32, {130});
  EXPECT_EQ(message(wrong, 0), "adamw_narrow: gradient holds f32, not bf16");
}

}  // namespace
}  // namespace headroom
