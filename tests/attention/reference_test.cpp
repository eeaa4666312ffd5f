#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "attention/implementations.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

// Derivatives of the reference by central differences in double.
class Reference {
 public:
  explicit Reference(const AttentionProblem& problem)
      : problem_(problem), inputs_(7), device_(describe_cpu()) {
    const std::int64_t rows = problem.batch * problem.seq_q * problem.heads_q * problem.head_dim;
    const std::int64_t keys = problem.batch * problem.seq_k * problem.heads_kv * problem.head_dim;
    const std::int64_t statistics = problem.batch * problem.heads_q * problem.seq_q;
    const std::array sizes = {rows, keys, keys, rows, statistics};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::int64_t j = 0; j < sizes[i]; ++j) {
        inputs_[i].push_back(Random(i + 1).normal(static_cast<std::uint64_t>(j)));
      }
    }
    sinks_ = {0.5F, -0.25F, 0.125F, 1.0F};
  }

  // sum of O . dO + LSE . dLSE
  double objective() {
    run_forward();
    double sum = 0;
    for (std::size_t i = 0; i < output_.size(); ++i) sum += output_[i] * inputs_[3][i];
    for (std::size_t i = 0; i < lse_.size(); ++i) {
      if (std::isfinite(lse_[i])) sum += lse_[i] * inputs_[4][i];
    }
    return sum;
  }

  // dQ, dK, dV.
  std::vector<std::vector<double>> gradients() {
    run_forward();
    std::vector<std::vector<double>> result = {inputs_[0], inputs_[1], inputs_[2]};
    std::vector<double> workspace(
        static_cast<std::size_t>(reference().workspace_bytes(problem_, device_, Pass::backward)) / 8 + 1);
    std::vector<double> sinks_gradient(static_cast<std::size_t>(problem_.heads_q));
    const AttentionBackward views{
        .forward = views_(),
        .output_gradient = view(inputs_[3], rows()),
        .lse_gradient = view(inputs_[4], {problem_.batch, problem_.heads_q, problem_.seq_q}),
        .query_gradient = view(result[0], rows()),
        .key_gradient = view(result[1], keys()),
        .value_gradient = view(result[2], keys()),
        .sinks_gradient = view(sinks_gradient, {problem_.heads_q})};
    reference().backward(
        problem_, views,
        TensorView(workspace.data(), DType::u8, {static_cast<std::int64_t>(workspace.size()) * 8}),
        {.device = &device_, .pool = nullptr, .poll = {}, .native = nullptr});
    result.push_back(sinks_gradient);
    return result;
  }

  std::vector<double>& input(std::size_t i) { return inputs_[i]; }
  std::vector<float>& sinks() { return sinks_; }

 private:
  static const AttentionImplementation& reference() { return attention_implementations().back(); }
  static TensorView view(std::vector<double>& data, const Shape& shape) {
    return {data.data(), DType::f64, shape};
  }
  [[nodiscard]] Shape rows() const {
    return {problem_.batch, problem_.seq_q, problem_.heads_q, problem_.head_dim};
  }
  [[nodiscard]] Shape keys() const {
    return {problem_.batch, problem_.seq_k, problem_.heads_kv, problem_.head_dim};
  }
  AttentionForward views_() {
    AttentionForward views{.query = view(inputs_[0], rows()),
                           .key = view(inputs_[1], keys()),
                           .value = view(inputs_[2], keys()),
                           .sinks = TensorView(sinks_.data(), DType::f32, {problem_.heads_q}),
                           .document_starts = {},
                           .blocks = {},
                           .output = view(output_, rows()),
                           .lse = view(lse_, {problem_.batch, problem_.heads_q, problem_.seq_q}),
                           .saved = {}};
    if (problem_.mask.max_documents > 0) views.document_starts = TensorView(starts_, DType::i32, {1, 3});
    return views;
  }
  void run_forward() {
    output_.assign(inputs_[3].size(), 0);
    lse_.assign(inputs_[4].size(), 0);
    reference().forward(problem_, views_(), {},
                        {.device = &device_, .pool = nullptr, .poll = {}, .native = nullptr});
  }

  AttentionProblem problem_;
  std::vector<std::vector<double>> inputs_;
  std::vector<float> sinks_;
  std::vector<double> output_;
  std::vector<double> lse_;
  std::int32_t starts_[3] = {0, 4, 9};
  DeviceDescription device_;
};

AttentionProblem small(const Mask& mask) {
  return {.batch = 1, .seq_q = 9, .seq_k = 9, .heads_q = 4, .heads_kv = 2, .head_dim = 8, .mask = mask};
}

void expect_finite_differences(const AttentionProblem& problem) {
  Reference reference(problem);
  const std::vector<std::vector<double>> gradients = reference.gradients();
  constexpr double kStep = 1e-5;
  for (std::size_t input = 0; input < 3; ++input) {
    for (std::size_t i = 0; i < reference.input(input).size(); i += 7) {
      double& x = reference.input(input)[i];
      const double kept = x;
      x = kept + kStep;
      const double above = reference.objective();
      x = kept - kStep;
      const double below = reference.objective();
      x = kept;
      EXPECT_NEAR(gradients[input][i], (above - below) / (2 * kStep), 2e-8)
          << "input " << input << ", element " << i;
    }
  }
  for (std::size_t h = 0; problem.sinks && h < 4; ++h) {
    constexpr float kSinkStep = 0x1p-10F;  // the sinks are f32
    float& x = reference.sinks()[h];
    const float kept = x;
    x = kept + kSinkStep;
    const double above = reference.objective();
    x = kept - kSinkStep;
    const double below = reference.objective();
    x = kept;
    EXPECT_NEAR(gradients[3][h], (above - below) / (2 * kSinkStep), 1e-5) << "sink " << h;
  }
}

TEST(AttentionReference, GradientsAreFiniteDifferences) {
  Mask mask;
  expect_finite_differences(small(mask));
  mask.causal = true;
  expect_finite_differences(small(mask));
  mask.window_left = 2;
  AttentionProblem problem = small(mask);
  problem.softcap = 1.5F;
  problem.sinks = true;
  expect_finite_differences(problem);
  mask.window_left = Mask::kUnlimited;
  mask.max_documents = 2;
  expect_finite_differences(small(mask));
  mask.max_documents = 0;
  mask.dilations = {Dilation{4, 1}, Dilation{8, 2}};
  mask.dilation_count = 2;
  expect_finite_differences(small(mask));
  mask.mix_dilations = true;
  problem = small(mask);
  problem.sinks = true;
  expect_finite_differences(problem);
}

}  // namespace
}  // namespace headroom
