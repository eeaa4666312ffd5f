// The way to compare with: every rank gathers Q, K and V of the whole sequence, computes all of it and keeps
// its own rows. Rings were built so in several places; memory and work per rank then do not fall with the
// number of ranks. It takes one contiguous piece per rank and one sequence.
#pragma once

#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/ring_attention.h"

namespace headroom {

[[nodiscard]] Support gather_supports(const AttentionProblem& whole, const Partition& partition);
void gather_attention_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                              std::string_view pinned);
void gather_attention_backward(Context& context, const ParallelSchedule& schedule, const RingBackward& views,
                               std::string_view pinned);
// A gradient of lse adds its own.
[[nodiscard]] std::int64_t gather_sent_bytes(const AttentionProblem& whole, const Partition& partition,
                                             int rank, Pass pass);

}  // namespace headroom
