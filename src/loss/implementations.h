// The rows of the loss table, and what they share.
#pragma once

#include "headroom/loss.h"
#include "loss/labels.h"

namespace headroom {

[[nodiscard]] const LossImplementation& fused_loss();
[[nodiscard]] const LossImplementation& fused_cuda_loss();
[[nodiscard]] const LossImplementation& chunked_recomputing_loss();
[[nodiscard]] const LossImplementation& chunked_loss();
[[nodiscard]] const LossImplementation& standard_loss();
[[nodiscard]] const LossImplementation& reference_loss();

// fit_loss_chunks of a GPU: as many tokens as are fast, or a half, a quarter ... of them; at least 128.
[[nodiscard]] LossChunks fit_cuda_loss_chunks(const LossProblem& problem, const DeviceDescription& device,
                                              std::int64_t budget_bytes);

// Which label judges a token, and by how much it counts.
class TokenTargets {
 public:
  TokenTargets(const LossProblem& problem, const LossForward& views);

  // -1 where the token counts for nothing.
  [[nodiscard]] std::int64_t label(std::int64_t token) const { return labels_.label(token); }
  // Of the token's loss in the whole; 0 where it counts for nothing. A mean over nothing is 0.
  [[nodiscard]] double weight(std::int64_t token) const;
  // Whether some token of [begin, end) counts.
  [[nodiscard]] bool any(std::int64_t begin, std::int64_t end) const;

 private:
  LossLabels labels_;
  double divisor_ = 1;
};

}  // namespace headroom
