#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headroom/cpu.h"
#include "loss_cases.h"

namespace headroom {
namespace {

// Every case, implementation and SIMD level of the machine.
TEST(LossLong, WholeList) {
  DeviceDescription device = describe_cpu();
  const SimdLevel best = device.simd;
  device.cores = 2;
  for (const LossCase& c : loss_cases()) {
    const PreparedLossCase prepared(c);
    for (const LossImplementation& row : loss_implementations()) {
      if (!serves(c, row.name)) continue;
      for (const SimdLevel simd : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512}) {
        if (simd > best) continue;
        device.simd = simd;
        EXPECT_LE(prepared.judge(row.name, device).worst(), 1)
            << row.name << " on " << name(simd) << ", " << c.group << ": " << c.name;
      }
    }
  }
}

// 66,000 tokens x 33,000 words: 2.18e9 logits, past 2^31, a few of them at a time.
TEST(LossLong, PastTwoToThe31Logits) {
  const LossProblem p{.tokens = 66'000, .hidden = 8, .vocab = 33'000, .reduction = Reduction::none};
  DeviceDescription device = describe_cpu();
  device.cores = 2;
  ThreadPool pool(2);
  const Stream stream{.device = &device, .pool = &pool, .poll = {}, .native = nullptr};
  const auto normal = [](std::int64_t count, std::uint64_t seed) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(Random(seed).normal(static_cast<std::uint64_t>(i))));
    }
    return values;
  };
  std::vector<float> hidden = normal(p.tokens * p.hidden, 1);
  std::vector<float> weight = normal(p.vocab * p.hidden, 2);
  std::vector<std::int32_t> labels;
  for (std::int64_t t = 0; t < p.tokens; ++t) labels.push_back(static_cast<std::int32_t>(t % p.vocab));
  std::vector<float> loss(labels.size());
  std::vector<float> loss_gradient(labels.size(), 1);
  std::vector<float> hidden_gradient(hidden.size());
  std::vector<float> weight_gradient(weight.size());
  const LossImplementation& fused = loss_implementations().front();
  const Scratch workspace(fused.workspace_bytes(p, device, Pass::backward));
  fused.backward(p,
                 {.forward = {.hidden = TensorView(hidden.data(), DType::f32, {p.tokens, p.hidden}),
                              .weight = TensorView(weight.data(), DType::f32, {p.vocab, p.hidden}),
                              .labels = TensorView(labels.data(), DType::i32, {p.tokens}),
                              .token_weights = {},
                              .loss = TensorView(loss.data(), DType::f32, {p.tokens}),
                              .saved = {}},
                  .loss_gradient = TensorView(loss_gradient.data(), DType::f32, {p.tokens}),
                  .hidden_gradient = TensorView(hidden_gradient.data(), DType::f32, {p.tokens, p.hidden}),
                  .weight_gradient = TensorView(weight_gradient.data(), DType::f32, {p.vocab, p.hidden})},
                 workspace.view(), stream);
  EXPECT_TRUE(workspace.canaries_alive());
  const auto element = [&](const std::vector<float>& tensor, std::int64_t row, std::int64_t i) {
    return double{tensor[static_cast<std::size_t>(row * p.hidden + i)]};
  };
  for (const std::int64_t token : {std::int64_t{0}, p.tokens / 2, p.tokens - 1}) {
    std::vector<double> z(static_cast<std::size_t>(p.vocab));
    double sum = 0;
    for (std::int64_t v = 0; v < p.vocab; ++v) {
      double& logit = z[static_cast<std::size_t>(v)];
      for (std::int64_t i = 0; i < p.hidden; ++i) logit += element(hidden, token, i) * element(weight, v, i);
      sum += std::exp(logit);
    }
    const auto label = static_cast<std::size_t>(labels[static_cast<std::size_t>(token)]);
    EXPECT_NEAR(loss[static_cast<std::size_t>(token)], std::log(sum) - z[label], 1e-5);
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      double gradient = -element(weight, static_cast<std::int64_t>(label), i);
      for (std::int64_t v = 0; v < p.vocab; ++v) {
        gradient += std::exp(z[static_cast<std::size_t>(v)]) / sum * element(weight, v, i);
      }
      // 33,000 words one after the other in f32: 4e-5 was seen.
      EXPECT_NEAR(element(hidden_gradient, token, i), gradient, 2e-4);
    }
  }
  // Every token's dZ sums to zero, so dW summed over the words does.
  for (std::int64_t i = 0; i < p.hidden; ++i) {
    double sum = 0;
    double size = 0;
    for (std::int64_t v = 0; v < p.vocab; ++v) {
      sum += element(weight_gradient, v, i);
      size += std::abs(element(weight_gradient, v, i));
    }
    EXPECT_NEAR(sum / size, 0, 1e-5);
  }
}

}  // namespace
}  // namespace headroom
