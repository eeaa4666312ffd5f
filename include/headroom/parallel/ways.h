// The ways to divide attention over ranks. Each rank has the tokens of its pieces before and after, so that
// one way can take the place of another.
#pragma once

#include <string>

#include "headroom/parallel/head_parallel.h"
#include "headroom/parallel/ring_attention.h"

namespace headroom {

enum class AttentionWay : std::uint8_t {
  ring,    // K and V move between ranks, tokens are divided
  heads,   // all-to-all: every rank gets all tokens of some heads (Ulysses)
  gather,  // every rank gathers all K and V: to compare with, it needs memory for the whole sequence
};
[[nodiscard]] std::string_view name(AttentionWay way);

// Whether a way can divide the problem as the partition has it.
[[nodiscard]] Support supports_way(AttentionWay way, const RingSchedule& schedule);

void parallel_attention_forward(Context& context, AttentionWay way, const RingSchedule& schedule,
                                const RingForward& views, std::string_view pinned = {});
void parallel_attention_backward(Context& context, AttentionWay way, const RingSchedule& schedule,
                                 const RingBackward& views, std::string_view pinned = {});

// Bytes that a rank sends in a pass.
[[nodiscard]] std::int64_t sent_bytes(AttentionWay way, const RingSchedule& schedule, int rank, Pass pass);

// How fast a rank computes and its link moves, for the choice below.
struct WayRates {
  double flops_per_second = 0;
  double link_bytes_per_second = 0;
};
struct WayChoice {
  AttentionWay way = AttentionWay::ring;
  double ring_seconds = 0;   // forward and backward of the slowest rank
  double heads_seconds = 0;  // 0 where heads cannot be divided
  std::string reason;        // one sentence
};
// Picks ring or heads by the time of the slowest rank. A ring's messages move while it computes, so it takes
// the longer of the two; the all-to-all comes before and after, so that its time is added. Ways differ in
// balance too: with heads every rank has the same work. Latency is left out.
[[nodiscard]] WayChoice choose_way(const RingSchedule& schedule, const WayRates& rates);

}  // namespace headroom
