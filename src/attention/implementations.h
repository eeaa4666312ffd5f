// The rows of the attention table, and what they share.
#pragma once

#include <algorithm>
#include <cmath>

#include "headroom/attention.h"

namespace headroom {

[[nodiscard]] const AttentionImplementation& tiled_attention();
[[nodiscard]] const AttentionImplementation& sm90_attention();
[[nodiscard]] const AttentionImplementation& bf16x3_attention();
[[nodiscard]] const AttentionImplementation& tf32x3_attention();
[[nodiscard]] const AttentionImplementation& portable_attention();
[[nodiscard]] const AttentionImplementation& tf32_attention();
[[nodiscard]] const AttentionImplementation& naive_attention();
[[nodiscard]] const AttentionImplementation& naive_recomputing_attention();
[[nodiscard]] const AttentionImplementation& reference_attention();

[[nodiscard]] inline float score_scale(const AttentionProblem& problem) {
  return problem.scale != 0 ? problem.scale : 1.0F / std::sqrt(static_cast<float>(problem.head_dim));
}

// The most rows of a chunk of `rows` from position `start` on that can take part in one of the problem's
// patterns: of each segment a rate-th, rounded up. Documents, and the chunk's start, may cut one.
[[nodiscard]] inline std::int64_t most_dilated_rows(const AttentionProblem& problem, std::int64_t rows,
                                                    std::int64_t start) {
  std::int64_t most = 0;
  for (int i = 0; i < problem.mask.dilation_count; ++i) {
    const Dilation& dilation = problem.mask.dilations[static_cast<std::size_t>(i)];
    const std::int64_t segments = rows / dilation.segment + problem.mask.max_documents + (start > 0 ? 2 : 1);
    most = std::max(most, rows / dilation.rate + segments);
  }
  return std::min(most, rows);
}

// A row of [batch, heads, seq]-shaped statistics.
[[nodiscard]] inline std::int64_t statistics_row(const AttentionProblem& problem, std::int64_t batch,
                                                 std::int64_t head, std::int64_t row) {
  return (batch * problem.heads_q + head) * problem.seq_q + row;
}

}  // namespace headroom
