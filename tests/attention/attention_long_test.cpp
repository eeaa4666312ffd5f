#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "attention/chunks.h"
#include "attention_cases.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

class AttentionLevels : public testing::TestWithParam<const char*> {};

// Every case on the best SIMD level, every third on the others.
TEST_P(AttentionLevels, WholeList) {
  const SimdLevel wanted = GetParam() == std::string("avx512") ? SimdLevel::avx512
                           : GetParam() == std::string("avx2") ? SimdLevel::avx2
                                                               : SimdLevel::portable;
  const SimdLevel best = describe_cpu().simd;
  if (best < wanted) GTEST_SKIP() << "this CPU has " << name(best);
  setenv("HEADROOM_SIMD", GetParam(), 1);
  int served = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (!serves(c, "tiled")) continue;
    if (served++ % (wanted == best ? 1 : 3) != 0) continue;
    EXPECT_LE(run_attention_case(c, "tiled", 2).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GE(served, 300);
  unsetenv("HEADROOM_SIMD");
}

INSTANTIATE_TEST_SUITE_P(Simd, AttentionLevels, testing::Values("portable", "avx2", "avx512"));

TEST(AttentionLong, ManyChunksMakeTheWhole) {
  EXPECT_EQ(run_chunk_draws(on_cpu("tiled"), 1000, 200), 200);
}

// O, LSE and dQ of one row, from their definition, in double.
struct OneRow {
  std::vector<double> output;
  std::vector<double> query_gradient;
  double lse = 0;
};

OneRow row_in_double(const std::vector<std::vector<float>>& tensors, std::int64_t row, std::int64_t keys,
                     std::int64_t d) {
  const auto element = [&](std::size_t tensor, std::int64_t r, std::int64_t c) {
    return double{tensors[tensor][static_cast<std::size_t>(r * d + c)]};
  };
  const auto dot = [&](std::size_t a, std::size_t b, std::int64_t key) {
    double sum = 0;
    for (std::int64_t c = 0; c < d; ++c) sum += element(a, row, c) * element(b, key, c);
    return sum;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  double highest = -INFINITY;
  for (std::int64_t j = 0; j < keys; ++j) highest = std::max(highest, scale * dot(0, 1, j));
  double sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) sum += std::exp(scale * dot(0, 1, j) - highest);
  OneRow result{std::vector<double>(static_cast<std::size_t>(d)),
                std::vector<double>(static_cast<std::size_t>(d)), highest + std::log(sum)};
  double mean = 0;  // of dP: dO . O
  for (std::int64_t j = 0; j < keys; ++j) {
    const double p = std::exp(scale * dot(0, 1, j) - result.lse);
    mean += p * dot(4, 2, j);
    for (std::int64_t c = 0; c < d; ++c) result.output[static_cast<std::size_t>(c)] += p * element(2, j, c);
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const double ds = std::exp(scale * dot(0, 1, j) - result.lse) * (dot(4, 2, j) - mean);
    for (std::int64_t c = 0; c < d; ++c) {
      result.query_gradient[static_cast<std::size_t>(c)] += scale * ds * element(1, j, c);
    }
  }
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
    const OneRow expected = row_in_double(tensors, row, seq, d);
    EXPECT_NEAR(lse[static_cast<std::size_t>(row)], expected.lse, 1e-5);
    for (std::int64_t c = 0; c < d; ++c) {
      EXPECT_NEAR(tensors[3][static_cast<std::size_t>(row * d + c)],
                  expected.output[static_cast<std::size_t>(c)], 1e-6);
      EXPECT_NEAR(tensors[5][static_cast<std::size_t>(row * d + c)],
                  expected.query_gradient[static_cast<std::size_t>(c)], 1e-5);
    }
  }
  // Every row's probabilities sum to one, so dV summed over the keys is dO summed over the queries; and every
  // row's dS sums to zero, so dK does.
  for (std::int64_t c = 0; c < d; ++c) {
    double into = 0;
    double out = 0;
    double keys = 0;
    for (std::int64_t row = 0; row < seq; ++row) {
      into += tensors[4][static_cast<std::size_t>(row * d + c)];
      out += tensors[7][static_cast<std::size_t>(row * d + c)];
      keys += tensors[6][static_cast<std::size_t>(row * d + c)];
    }
    EXPECT_NEAR(out, into, 1e-2);
    EXPECT_NEAR(keys, 0, 1e-2);
  }
}

}  // namespace
}  // namespace headroom
