// Attention over ranks, in any of the ways, and the choice between them.
#pragma once

#include <string>
#include <vector>

#include "headroom/parallel/attention_time.h"
#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/ring_attention.h"

namespace headroom {

// Runs a rank's part, in a Context that is one of as many ranks. Every rank calls it. The results are the
// same in every way, but for the rounding of sums that are added in another order.
void parallel_attention_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                                std::string_view pinned = {});
void parallel_attention_backward(Context& context, const ParallelSchedule& schedule,
                                 const RingBackward& views, std::string_view pinned = {});

struct WayEstimate {
  int group = 1;        // ranks that divide heads
  double seconds = 0;   // forward and backward of the slowest rank
  std::string refused;  // why it is not possible, or empty
};
struct WayChoice {
  AttentionWay way = AttentionWay::ring;
  int group = 1;
  std::vector<WayEstimate> estimates;  // the ring first, heads alone last
  std::string reason;                  // one sentence
};
// Picks the size of groups by the time of the slowest rank: one rank (a ring), all of them (heads), or any
// divisor between (the product). The times are those of play_attention: a ring's messages move while it
// computes, the all-to-all of heads comes before and after. Ways differ in balance too: the ranks of a group
// have the same work.
[[nodiscard]] WayChoice choose_way(const AttentionProblem& whole, const AttentionForward& lists,
                                   const Partition& partition, const RankRates& rates);

}  // namespace headroom
