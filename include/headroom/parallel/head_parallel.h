// Head-parallel attention (Ulysses): an all-to-all gives every rank all tokens of some heads, attention runs
// there as on one rank, and a second all-to-all brings the results back to the tokens' ranks.
#pragma once

#include "headroom/parallel/ring_attention.h"

namespace headroom {

// Every rank gets as many query heads and as many K/V heads, and masks that differ between heads have to fall
// on them alike.
[[nodiscard]] Support head_parallel_supports(const RingSchedule& schedule);

void head_parallel_forward(Context& context, const RingSchedule& schedule, const RingForward& views,
                           std::string_view pinned = {});
void head_parallel_backward(Context& context, const RingSchedule& schedule, const RingBackward& views,
                            std::string_view pinned = {});

// Bytes that a rank sends in a pass. A gradient of lse adds its own.
[[nodiscard]] std::int64_t head_parallel_sent_bytes(const RingSchedule& schedule, int rank, Pass pass);

}  // namespace headroom
