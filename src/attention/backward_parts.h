// Backward of attention in equal parts, one after the other, so that one part's workspace serves all of them.
// A part is one sequence, or a group of K/V heads of one sequence with their query heads. Sequences and K/V
// heads do not depend on each other, so the bits are those of the whole.
#pragma once

#include "headroom/attention.h"

namespace headroom {

struct BackwardParts {
  // The fewest parts whose workspace is within problem.most_backward_bytes; where no number of parts is, as
  // many as there can be. Only parts that need less workspace than the whole are made.
  [[nodiscard]] static BackwardParts of(const AttentionProblem& problem, const AttentionImplementation& row,
                                        const DeviceDescription& device);

  AttentionProblem problem;  // of every part
  std::int64_t count = 1;
  std::int64_t workspace_bytes = 0;

  // The views of a part, from those of the whole.
  [[nodiscard]] AttentionBackward views(const AttentionBackward& whole, std::int64_t part) const;
};

}  // namespace headroom
