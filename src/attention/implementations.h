// The rows of the attention table, and what they share.
#pragma once

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

// A row of [batch, heads, seq]-shaped statistics.
[[nodiscard]] inline std::int64_t statistics_row(const AttentionProblem& problem, std::int64_t batch,
                                                 std::int64_t head, std::int64_t row) {
  return (batch * problem.heads_q + head) * problem.seq_q + row;
}

}  // namespace headroom
