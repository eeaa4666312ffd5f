// The loss of one token from the statistics of all ranks, and the rule for its gradients; for host and
// device. Ranks are merged in their order, in f64: the bits depend on the slices alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "headroom/core/random.h"  // HEADROOM_HOST_DEVICE
#include "loss/slice.h"

namespace headroom {

struct MergedStatistics {
  double max;
  double sum;
  double logit_sum;
  double target;
};

// Rank r's statistics of the token are parts[r * stride].
[[nodiscard]] HEADROOM_HOST_DEVICE
inline MergedStatistics merge_statistics(const TokenStatistics* parts, std::int64_t stride,
                                         std::int64_t ranks) {
  MergedStatistics merged{parts->max, 0, 0, 0};
  for (std::int64_t r = 1; r < ranks; ++r) {
    // NaN too
    if (!(static_cast<double>(parts[r * stride].max) <= merged.max)) merged.max = parts[r * stride].max;
  }
  for (std::int64_t r = 0; r < ranks; ++r) {
    const TokenStatistics& part = parts[r * stride];
    // A rank without words has a sum of 0 and a max of -inf.
    if (part.sum != 0)
      merged.sum += static_cast<double>(part.sum) * exp(static_cast<double>(part.max) - merged.max);
    merged.logit_sum += static_cast<double>(part.logit_sum);
    merged.target += static_cast<double>(part.target);
  }
  return merged;
}

struct TokenJudge {
  std::int64_t vocab;
  float label_smoothing;
  float z_loss;
  double divisor;       // the rank's labels
  float loss_gradient;  // of the rank's mean loss

  // Labels as LossLabels::label gives them. One outside of the vocabulary gives NaN.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  double loss(const MergedStatistics& merged, std::int64_t label) const {
    if (label < 0) return 0;
    const double smoothing = label_smoothing;
    const double log_sum = log(merged.sum);
    const double lse = merged.max + log_sum;
    const double mean = merged.logit_sum / static_cast<double>(vocab);
    const double target = label < vocab ? merged.target : static_cast<double>(NAN);
    const double loss = (1 - smoothing) * (merged.max - target + log_sum) +
                        smoothing * (merged.max - mean + log_sum) + static_cast<double>(z_loss) * lse * lse;
    return loss / divisor;
  }

  [[nodiscard]] HEADROOM_HOST_DEVICE
  TokenRule rule(const MergedStatistics& merged, std::int64_t label) const {
    const auto max = static_cast<float>(merged.max);
    if (label < 0) return {max, 0, 0, 0};
    const double scale = static_cast<double>(loss_gradient) / divisor;
    const double lse = merged.max + log(merged.sum);
    const double slope = 1 + 2 * static_cast<double>(z_loss) * lse;
    return {max, label < vocab ? static_cast<float>(scale * slope / merged.sum) : NAN,
            static_cast<float>(scale * static_cast<double>(label_smoothing) / static_cast<double>(vocab)),
            static_cast<float>(scale * (1 - static_cast<double>(label_smoothing)))};
  }
};

}  // namespace headroom
