#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "attention_cases.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

class AttentionLevels : public testing::TestWithParam<const char*> {};

// Every case on every SIMD level of the machine.
TEST_P(AttentionLevels, WholeList) {
  setenv("HEADROOM_SIMD", GetParam(), 1);
  int served = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (!serves(c, "tiled")) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, "tiled", 2).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GE(served, 300);
  unsetenv("HEADROOM_SIMD");
}

INSTANTIATE_TEST_SUITE_P(Simd, AttentionLevels, testing::Values("portable", "avx2", "avx512"));

// O and dQ of one row, from its definition, in double; D = dO is all ones, so dP is the sum of a value.
struct OneRow {
  std::vector<double> output;
  double lse = 0;
};

OneRow row_in_double(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                     std::int64_t row, std::int64_t keys, std::int64_t d) {
  std::vector<double> scores(static_cast<std::size_t>(keys));
  double highest = -INFINITY;
  for (std::int64_t j = 0; j < keys; ++j) {
    double score = 0;
    for (std::int64_t c = 0; c < d; ++c) {
      score += double{q[static_cast<std::size_t>(row * d + c)]} * k[static_cast<std::size_t>(j * d + c)];
    }
    scores[static_cast<std::size_t>(j)] = score / std::sqrt(static_cast<double>(d));
    highest = std::max(highest, scores[static_cast<std::size_t>(j)]);
  }
  OneRow result{std::vector<double>(static_cast<std::size_t>(d)), 0};
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - highest);
  for (std::int64_t j = 0; j < keys; ++j) {
    const double p = std::exp(scores[static_cast<std::size_t>(j)] - highest) / sum;
    for (std::int64_t c = 0; c < d; ++c) {
      result.output[static_cast<std::size_t>(c)] += p * v[static_cast<std::size_t>(j * d + c)];
    }
  }
  result.lse = highest + std::log(sum);
  return result;
}

// 46,400 queries see 46,400 keys each: 2.15e9 scores, past 2^31, none of them stored.
TEST(AttentionLong, PastTwoToThe31Scores) {
  const std::int64_t seq = 46'400;
  const std::int64_t d = 8;
  const AttentionProblem problem{.seq_q = seq, .seq_k = seq, .head_dim = d};
  ASSERT_GT(visible_pairs(problem), std::int64_t{1} << 31);
  DeviceDescription device = describe_cpu();
  device.cores = 2;
  ThreadPool pool(2);
  const Stream stream{.device = &device, .pool = &pool, .poll = {}, .native = nullptr};
  const auto elements = static_cast<std::size_t>(seq * d);
  std::vector<std::vector<float>> tensors(8, std::vector<float>(elements));
  for (const std::size_t t : {0U, 1U, 2U, 4U}) {
    for (std::size_t i = 0; i < elements; ++i) tensors[t][i] = static_cast<float>(Random(t + 1).normal(i));
  }
  std::vector<float> lse(static_cast<std::size_t>(seq));
  const auto view = [&](std::size_t t) { return TensorView(tensors[t].data(), DType::f32, {1, seq, 1, d}); };
  const AttentionForward forward{.query = view(0),
                                 .key = view(1),
                                 .value = view(2),
                                 .sinks = {},
                                 .document_starts = {},
                                 .blocks = {},
                                 .output = view(3),
                                 .lse = TensorView(lse.data(), DType::f32, {1, 1, seq}),
                                 .saved = {}};
  const AttentionImplementation& tiled = attention_implementations().front();
  const std::int64_t bytes = std::max(tiled.workspace_bytes(problem, device, Pass::forward),
                                      tiled.workspace_bytes(problem, device, Pass::backward));
  EXPECT_LT(bytes, 64 << 20);
  std::vector<double> storage(static_cast<std::size_t>(bytes) / 8 + 8);
  void* pointer = storage.data();
  std::size_t space = storage.size() * 8;
  const TensorView workspace(std::align(64, static_cast<std::size_t>(bytes), pointer, space), DType::u8,
                             {bytes});
  tiled.forward(problem, forward, workspace, stream);
  tiled.backward(problem,
                 {.forward = forward,
                  .output_gradient = view(4),
                  .lse_gradient = {},
                  .query_gradient = view(5),
                  .key_gradient = view(6),
                  .value_gradient = view(7),
                  .sinks_gradient = {}},
                 workspace, stream);
  for (const std::int64_t row : {std::int64_t{0}, seq / 2, seq - 1}) {
    const OneRow expected = row_in_double(tensors[0], tensors[1], tensors[2], row, seq, d);
    EXPECT_NEAR(lse[static_cast<std::size_t>(row)], expected.lse, 1e-5);
    for (std::int64_t c = 0; c < d; ++c) {
      EXPECT_NEAR(tensors[3][static_cast<std::size_t>(row * d + c)],
                  expected.output[static_cast<std::size_t>(c)], 1e-6);
    }
  }
  // Every row's probabilities sum to one, so dV summed over the keys is dO summed over the queries.
  for (std::int64_t c = 0; c < d; ++c) {
    double into = 0;
    double out = 0;
    for (std::int64_t row = 0; row < seq; ++row) {
      into += tensors[4][static_cast<std::size_t>(row * d + c)];
      out += tensors[7][static_cast<std::size_t>(row * d + c)];
    }
    EXPECT_NEAR(out, into, 1e-2);
  }
}

}  // namespace
}  // namespace headroom
