#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headroom/attention.h"

namespace headroom {
namespace {

AttentionProblem problem() {
  return {.batch = 2, .seq_q = 100, .seq_k = 120, .heads_q = 8, .heads_kv = 2, .head_dim = 64};
}

TEST(AttentionProblem, ValidatesEveryField) {
  validate(problem());
  const std::vector<std::function<void(AttentionProblem&)>> breaks = {
      [](auto& p) { p.batch = -1; },
      [](auto& p) { p.seq_q = -1; },
      [](auto& p) { p.heads_kv = 3; },
      [](auto& p) { p.heads_kv = 0; },
      [](auto& p) { p.head_dim = 60; },
      [](auto& p) { p.head_dim = 264; },
      [](auto& p) { p.head_dim = 0; },
      [](auto& p) { p.dtype = DType::i32; },
      [](auto& p) { p.scale = -1; },
      [](auto& p) { p.softcap = -1; },
      [](auto& p) { p.mask.window_left = -1; },
      [](auto& p) { p.mask.max_documents = -1; },
      [](auto& p) { p.scale = std::numeric_limits<float>::infinity(); },
      [](auto& p) { p.softcap = std::numeric_limits<float>::quiet_NaN(); },
      [](auto& p) { p.mask.mix_dilations = true; },
      [](auto& p) { p.batch = std::int64_t{1} << 50; },
      [](auto& p) { p.mask.dilation_count = 9; },
      [](auto& p) { p.mask.dilation_count = 1; },  // its segment is zero
      [](auto& p) {
        p.mask.dilations = {Dilation{64, 1}, Dilation{64, 2}, Dilation{64, 4}};
        p.mask.dilation_count = 3;  // eight heads do not divide by three
      },
      [](auto& p) { p.mask.block_rows = 64; },
      [](auto& p) { p.output_dtype = DType::bf16; },  // of f32 inputs
      [](auto& p) { p.gradient_dtype = DType::bf16; },
      [](auto& p) {
        p.dtype = DType::bf16;  // its gradients too
        p.add_gradients = true;
      },
      [](auto& p) { p.open_queries = OpenQueries{}; },  // and dK and dV are not added to
      [](auto& p) {
        p.open_queries = OpenQueries{};
        p.add_gradients = true;
        p.seq_k = 0;
      },
      [](auto& p) { p.chunk = {.query_start = -1, .key_start = 0}; },
      [](auto& p) { p.chunk = {.query_start = 0, .key_start = (std::int64_t{1} << 60) + 1}; },
      [](auto& p) { p.sinks = p.resume = true; },
      [](auto& p) {
        p.dtype = DType::bf16;  // its output too
        p.resume = true;
      },
      [](auto& p) {
        p.mask.max_documents = 1;  // the first queries stand at no position
        p.seq_q = p.seq_k + 1;
      },
      [](auto& p) {
        p.mask.max_documents = 1;
        p.chunk = {.query_start = (std::int64_t{1} << 31) - 100, .key_start = 0};
      },
      [](auto& p) {
        p.mask.dilations[0] = {64, 2};
        p.mask.dilation_count = 1;
        p.mask.mix_dilations = p.mask.detach_mixing = true;
        p.seq_q = p.seq_k;
        p.chunk = {.query_start = 0, .key_start = 0};
      },
      [](auto& p) {
        p.mask.max_documents = 4;
        p.seq_q = p.seq_k = std::int64_t{1} << 31;
      },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    AttentionProblem broken = problem();
    breaks[i](broken);
    EXPECT_THROW(validate(broken), Error) << i;
  }
}

// After all keys, among them, before them, and far apart.
constexpr AttentionChunk kChunks[] = {{50, 0}, {10, 16}, {0, 45}, {std::int64_t{1} << 60, 0}};

// By looking at every pair.
std::int64_t count_pairs(const AttentionProblem& p) {
  std::int64_t pairs = 0;
  for (std::int64_t q = 0; q < p.seq_q; ++q) {
    for (std::int64_t k = 0; k < p.seq_k; ++k) {
      const std::int64_t distance = p.key_start() + k - (p.query_start() + q);
      const bool left = distance >= 0 || -distance <= p.mask.window_left;
      const bool right = distance <= 0 || (!p.mask.causal && distance <= p.mask.window_right);
      pairs += left && right;
    }
  }
  return pairs;
}

TEST(AttentionProblem, CountsVisiblePairs) {
  for (const std::int64_t seq_q : {0, 1, 7, 40}) {
    for (const std::int64_t seq_k : {0, 1, 13, 40}) {
      for (const bool causal : {false, true}) {
        for (const std::int64_t left : {std::int64_t{0}, std::int64_t{5}, Mask::kUnlimited}) {
          for (const std::int64_t right : {std::int64_t{0}, std::int64_t{3}, Mask::kUnlimited}) {
            AttentionProblem p{.seq_q = seq_q, .seq_k = seq_k, .head_dim = 64};
            p.mask.causal = causal;
            p.mask.window_left = left;
            p.mask.window_right = right;
            const std::string what = fmt::format("{} {} {} {} {}", seq_q, seq_k, causal, left, right);
            EXPECT_EQ(visible_pairs(p), count_pairs(p)) << what;
            for (const AttentionChunk& chunk : kChunks) {
              p.chunk = chunk;
              EXPECT_EQ(visible_pairs(p), count_pairs(p)) << what << " chunk " << chunk.query_start;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionProblem, CountsArithmeticAndBytes) {
  // 4 B H S^2 D forward, 2.5 times that backward.
  const AttentionProblem p{
      .batch = 1, .seq_q = 16384, .seq_k = 16384, .heads_q = 16, .heads_kv = 16, .head_dim = 128};
  EXPECT_DOUBLE_EQ(flops(p, Pass::forward), 4.0 * 16 * 16384.0 * 16384.0 * 128);
  EXPECT_DOUBLE_EQ(flops(p, Pass::backward), 2.5 * flops(p, Pass::forward));
  const std::int64_t tensor = 16384LL * 16 * 128 * 4;
  const std::int64_t lse = 16384LL * 16 * 4;
  EXPECT_EQ(minimum_bytes(p, Pass::forward), 4 * tensor + lse);
  EXPECT_EQ(minimum_bytes(p, Pass::backward), 8 * tensor + lse);
}

// Pairs of all heads and patterns, by asking the mask about every one.
double count_attending(const AttentionProblem& p) {
  double pairs = 0;
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    for (int pattern = 0; pattern < p.mask.patterns_per_head(); ++pattern) {
      const MaskView mask = mask_view(p, {}, 0, h, pattern);
      for (std::int64_t q = 0; q < p.seq_q; ++q) {
        for (std::int64_t k = 0; k < p.seq_k; ++k) pairs += mask.attends(q, k) ? 1 : 0;
      }
    }
  }
  return pairs;
}

TEST(AttentionProblem, ArithmeticOfDilationIsThatOfThePairsItLeaves) {
  // Segments that end with the sequence and inside it, longer than it, and shorter than the rate; patterns
  // dealt to the heads, and mixed.
  const std::vector<std::vector<Dilation>> patterns = {
      {{15, 2}}, {{14, 3}}, {{100, 4}}, {{3, 5}}, {{9, 1}, {45, 4}}};
  for (const std::vector<Dilation>& pattern : patterns) {
    for (const bool mixed : {false, true}) {
      for (const bool causal : {false, true}) {
        for (const std::int64_t left : {std::int64_t{0}, std::int64_t{5}, Mask::kUnlimited}) {
          for (const std::int64_t right : {std::int64_t{0}, std::int64_t{7}, Mask::kUnlimited}) {
            AttentionProblem p{
                .batch = 3, .seq_q = 45, .seq_k = 45, .heads_q = 4, .heads_kv = 2, .head_dim = 8};
            p.mask.causal = causal;
            p.mask.window_left = left;
            p.mask.window_right = right;
            p.mask.dilation_count = static_cast<int>(pattern.size());
            std::copy(pattern.begin(), pattern.end(), p.mask.dilations.begin());
            p.mask.mix_dilations = mixed;
            validate(p);
            const double pairs = 3 * count_attending(p);
            EXPECT_DOUBLE_EQ(flops(p, Pass::forward), 4 * 8 * pairs)
                << pattern[0].segment << "/" << pattern[0].rate << " " << mixed << causal << left << right;
            EXPECT_DOUBLE_EQ(flops(p, Pass::backward), 10 * 8 * pairs);
            for (const AttentionChunk& chunk : kChunks) {
              p.chunk = chunk;
              p.seq_q = 33;
              validate(p);
              EXPECT_DOUBLE_EQ(flops(p, Pass::forward), 4 * 8 * 3 * count_attending(p))
                  << pattern[0].segment << "/" << pattern[0].rate << " " << mixed << causal << left << right;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace headroom
