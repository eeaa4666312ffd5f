// Attention of a rank whose group divides heads: an all-to-all in the group gives the rank all of the group's
// tokens of some heads, the ring of those heads runs there, and a second all-to-all brings the results back
// to the tokens' ranks.
#pragma once

#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/ring_attention.h"

namespace headroom {

// Every rank of a group gets as many query heads and as many K/V heads, and masks that differ between heads
// have to fall on them alike.
[[nodiscard]] Support head_groups_support(const AttentionProblem& whole, int group);

void head_groups_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                         std::string_view pinned);
void head_groups_backward(Context& context, const ParallelSchedule& schedule, const RingBackward& views,
                          std::string_view pinned);

// Bytes that a rank sends to others of its group, of which there are so many. `of_rank` has the rank's heads,
// `own` and `all` are tokens of a sequence: the rank's and its group's. A gradient of lse adds its own.
[[nodiscard]] std::int64_t group_sent_bytes(const AttentionProblem& of_rank, int group, std::int64_t own,
                                            std::int64_t all, Pass pass);
[[nodiscard]] std::int64_t group_sent_bytes(const ParallelSchedule& schedule, int rank, Pass pass);

}  // namespace headroom
