// Which label judges a token, and what its loss is multiplied by; for host and device.
#pragma once

#include <cstdint>

#include "headroom/core/random.h"  // HEADROOM_HOST_DEVICE
#include "headroom/loss.h"

namespace headroom {

struct LossLabels {
  const std::int32_t* labels = nullptr;
  const float* weights = nullptr;  // null: all are 1
  std::int64_t sequence = 0;       // tokens of one; 0: a token is judged by its own label, not by the next
  std::int32_t ignore_index = 0;

  static LossLabels of(const LossProblem& problem, const LossForward& views) {
    const std::int64_t sequence = problem.sequence_tokens == 0 ? problem.tokens : problem.sequence_tokens;
    return {.labels = views.labels.data<std::int32_t>(),
            .weights = problem.token_weights ? views.token_weights.data<float>() : nullptr,
            .sequence = problem.shift ? sequence : 0,
            .ignore_index = problem.ignore_index};
  }

  // -1 where the token counts for nothing; past every vocabulary where the label is negative and not ignored.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t label(std::int64_t token) const {
    if (sequence != 0 && ++token % sequence == 0) return -1;
    const std::int32_t label = labels[token];
    if (label == ignore_index) return -1;
    return label < 0 ? std::int64_t{1} << 32 : label;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  double weight(std::int64_t token) const {
    return weights == nullptr ? 1.0 : static_cast<double>(weights[token]);
  }
};

}  // namespace headroom
