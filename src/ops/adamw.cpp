#include "headroom/ops/adamw.h"

#include <cmath>

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/narrow_state.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

void check_settings(const AdamW& settings) {
  check(settings.learning_rate >= 0, "adamw: learning_rate is {}; it has to be at least 0",
        settings.learning_rate);
  check(settings.beta1 >= 0 && settings.beta1 < 1, "adamw: beta1 is {}; it goes from 0 to below 1",
        settings.beta1);
  check(settings.beta2 >= 0 && settings.beta2 < 1, "adamw: beta2 is {}; it goes from 0 to below 1",
        settings.beta2);
  check(settings.epsilon >= 0, "adamw: epsilon is {}; it has to be at least 0", settings.epsilon);
  check(settings.weight_decay >= 0, "adamw: weight_decay is {}; it has to be at least 0",
        settings.weight_decay);
  check(settings.step >= 1, "adamw: step is {}; the first is 1", settings.step);
}

// Bias corrections lose their digits in f32 (1 - 0.999^1), so all of this is double up to the last rounding.
AdamWFactors factors_of(const AdamW& settings) {
  const auto step = static_cast<double>(settings.step);
  const double bias1 = 1 - std::pow(settings.beta1, step);
  const double bias2 = 1 - std::pow(settings.beta2, step);
  return {.decay = static_cast<float>(1 - settings.learning_rate * settings.weight_decay),
          .beta1 = static_cast<float>(settings.beta1),
          .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
          .step_size = static_cast<float>(settings.learning_rate / bias1),
          .inverse_root_bias = static_cast<float>(1 / std::sqrt(bias2)),
          .epsilon = static_cast<float>(settings.epsilon)};
}

struct AdamWCall {
  AdamWViews views;
  AdamW settings;
};
constexpr OperationRow<AdamWCall> kRows[] = {
    {"cpu", on_cpus,
     [](const AdamWCall& call, TensorView, const Stream& stream) {
       cpu::adamw(call.views, factors_of(call.settings), stream);
     }},
    {"cuda", on_cuda_gpus, [](const AdamWCall& call, TensorView, const Stream& stream) {
       cuda::adamw(call.views, factors_of(call.settings), stream);
     }}};

struct NarrowCall {
  NarrowAdamWViews views;
  AdamW settings;
  std::int64_t first_element;

  [[nodiscard]] NarrowUpdate update() const {
    return {.views = views,
            .factors = factors_of(settings),
            .random = Random(kRoundingSeed, static_cast<std::uint64_t>(settings.step)),
            .first_element = first_element};
  }
};
constexpr OperationRow<NarrowCall> kNarrowRows[] = {
    {"cpu", on_cpus,
     [](const NarrowCall& call, TensorView, const Stream& stream) {
       cpu::adamw_narrow(call.update(), stream);
     }},
    {"cuda", on_cuda_gpus, [](const NarrowCall& call, TensorView, const Stream& stream) {
       cuda::adamw_narrow(call.update(), stream);
     }}};

}  // namespace

void adamw(Context& context, const AdamWViews& views, const AdamW& settings) {
  const Arguments arguments("adamw");
  const Shape& shape = views.master.shape();
  arguments.vector(views.master, DType::f32, shape, "master");
  arguments.vector(views.gradient, DType::f32, shape, "gradient");
  arguments.vector(views.first, DType::f32, shape, "first");
  arguments.vector(views.second, DType::f32, shape, "second");
  arguments.floating(views.weight, "weight");
  arguments.vector(views.weight, views.weight.dtype(), shape, "weight");
  arguments.vector(views.factor, DType::f32, {1}, "factor");
  check_settings(settings);
  // Master and moments are read and written.
  run_operation<AdamWCall>(context, kRows, {views, settings},
                           moves("adamw", {views.master, views.master, views.gradient, views.first,
                                           views.first, views.second, views.second, views.weight}));
}

void adamw_narrow(Context& context, const NarrowAdamWViews& views, const AdamW& settings,
                  std::int64_t first_element) {
  const Arguments arguments("adamw_narrow");
  const Shape& shape = views.weight.shape();
  arguments.vector(views.weight, DType::bf16, shape, "weight");
  arguments.vector(views.gradient, DType::bf16, shape, "gradient");
  const DType moments = views.first.dtype() == DType::u8 ? DType::u8 : DType::bf16;
  arguments.vector(views.first, moments, shape, "first");
  arguments.vector(views.second, moments, shape, "second");
  if (moments == DType::u8) {
    const Shape blocks{divide_up(shape.elements(), kMomentBlock)};
    arguments.vector(views.first_exponents, DType::u8, blocks, "first_exponents");
    arguments.vector(views.second_exponents, DType::u8, blocks, "second_exponents");
  }
  arguments.vector(views.factor, DType::f32, {1}, "factor");
  check(first_element >= 0 && first_element % kMomentBlock == 0,
        "adamw_narrow: first_element is {}; it has to be a multiple of {}", first_element, kMomentBlock);
  check_settings(settings);
  // Weight and moments are read and written.
  run_operation<NarrowCall>(
      context, kNarrowRows, {views, settings, first_element},
      moves("narrow adamw",
            {views.weight, views.weight, views.gradient, views.first, views.first, views.second, views.second,
             views.first_exponents, views.first_exponents, views.second_exponents, views.second_exponents}));
}

namespace cpu {
namespace {

// kMomentBlock elements side by side, so that the compiler makes vectors of loops over them.
struct NarrowBlock {
  std::uint32_t weight_bits[kMomentBlock], first_bits[kMomentBlock], second_bits[kMomentBlock];  // random
  float first[kMomentBlock], second[kMomentBlock];

  NarrowBlock(const Random& random, std::int64_t first_element) {
    const auto pair = static_cast<std::uint64_t>(first_element) / 2;
    for (std::int64_t i = 0; i < kMomentBlock / 2; ++i) {
      const PairOfRoundingBits bits = rounding_bits(random, pair + static_cast<std::uint64_t>(i));
      for (int j = 0; j < 2; ++j) {
        weight_bits[2 * i + j] = bits.of[j].weight;
        first_bits[2 * i + j] = bits.of[j].first;
        second_bits[2 * i + j] = bits.of[j].second;
      }
    }
  }

  // Weights and moments <- those after the update.
  void update(const AdamWFactors& factors, float scale, BFloat16* weight, const BFloat16* gradient,
              std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      Moments moments{first[i], second[i]};
      const float after = update_weight(factors, static_cast<float>(weight[i]),
                                        scale * static_cast<float>(gradient[i]), moments);
      weight[i].bits = round_to_bf16(after, weight_bits[i]);
      first[i] = moments.first;
      second[i] = moments.second;
    }
  }
};

// Up to kMomentBlock elements, from `begin` on.
void update_block(const NarrowUpdate& update, float scale, std::int64_t begin, std::int64_t count) {
  const NarrowAdamWViews& views = update.views;
  NarrowBlock block(update.random, update.first_element + begin);
  const auto step = [&] {
    block.update(update.factors, scale, views.weight.data<BFloat16>() + begin,
                 views.gradient.data<BFloat16>() + begin, count);
  };
  if (views.first.dtype() == DType::bf16) {
    auto* first = views.first.data<BFloat16>() + begin;
    auto* second = views.second.data<BFloat16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) block.first[i] = static_cast<float>(first[i]);
    for (std::int64_t i = 0; i < count; ++i) block.second[i] = static_cast<float>(second[i]);
    step();
    for (std::int64_t i = 0; i < count; ++i)
      first[i].bits = round_to_bf16(block.first[i], block.first_bits[i]);
    for (std::int64_t i = 0; i < count; ++i)
      second[i].bits = round_to_bf16(block.second[i], block.second_bits[i]);
    return;
  }
  auto* first = views.first.data<std::uint8_t>() + begin;
  auto* second = views.second.data<std::uint8_t>() + begin;
  std::uint8_t& first_exponent = views.first_exponents.data<std::uint8_t>()[begin / kMomentBlock];
  std::uint8_t& second_exponent = views.second_exponents.data<std::uint8_t>()[begin / kMomentBlock];
  for (std::int64_t i = 0; i < count; ++i) {
    const Moments moments = decode_moments({first[i], second[i]}, first_exponent, second_exponent);
    block.first[i] = moments.first;
    block.second[i] = moments.second;
  }
  step();
  std::uint32_t largest_first = 0;
  std::uint32_t largest_second = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest_first = std::max(largest_first, float_bits(block.first[i]) & 0x7fffffffu);
    largest_second = std::max(largest_second, float_bits(block.second[i]));
  }
  first_exponent = static_cast<std::uint8_t>(FirstMomentCode::block_exponent(largest_first));
  second_exponent = static_cast<std::uint8_t>(SecondMomentCode::block_exponent(largest_second));
  for (std::int64_t i = 0; i < count; ++i) {
    const EightBitMoments codes =
        encode_moments({block.first[i], block.second[i]}, first_exponent, second_exponent,
                       {0, block.first_bits[i], block.second_bits[i]});
    first[i] = codes.first;
    second[i] = codes.second;
  }
}

}  // namespace

void adamw_narrow(const NarrowUpdate& update, const Stream& stream) {
  static_assert(kSpan % kMomentBlock == 0);
  const float scale = *update.views.factor.data<float>();
  if (!(scale > 0)) return;
  const std::int64_t elements = update.views.weight.elements();
  parallel_for(stream, divide_up(elements, kSpan), [&](std::int64_t item) {
    const std::int64_t end = std::min(elements, (item + 1) * kSpan);
    for (std::int64_t begin = item * kSpan; begin < end; begin += kMomentBlock) {
      update_block(update, scale, begin, std::min(kMomentBlock, end - begin));
    }
  });
}

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  const bool copied = views.weight.raw() != views.master.raw();
  for_each_span(std::array{views.master, views.gradient, views.first, views.second, views.weight}, stream,
                [&](const std::array<void*, 5>& pointers, std::int64_t count) {
                  kernels.adamw(factors,
                                {.master = static_cast<float*>(pointers[0]),
                                 .gradient = static_cast<const float*>(pointers[1]),
                                 .first = static_cast<float*>(pointers[2]),
                                 .second = static_cast<float*>(pointers[3]),
                                 .weight = copied ? pointers[4] : nullptr,
                                 .weight_dtype = views.weight.dtype(),
                                 .factor = views.factor.data<float>()},
                                count);
                });
}

}  // namespace cpu
}  // namespace headroom
