// The way to compare with: every rank gathers all K and V, as attention over ranks was first built in many
// places. Its memory grows with the whole sequence. It takes one contiguous piece per rank and one sequence.
#pragma once

#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/ring_attention.h"

namespace headroom {

[[nodiscard]] Support gather_supports(const AttentionProblem& whole, const Partition& partition);
void gather_attention_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                              std::string_view pinned);
void gather_attention_backward(Context& context, const ParallelSchedule& schedule, const RingBackward& views,
                               std::string_view pinned);
[[nodiscard]] std::int64_t gather_sent_bytes(const AttentionProblem& whole, const Partition& partition,
                                             int rank, Pass pass);

}  // namespace headroom
