#include "headroom/parallel/ways.h"

#include <algorithm>

#include "headroom/core/bytes.h"
#include "parallel/gather_attention.h"

namespace headroom {
namespace {

double flops_per_pair(const AttentionProblem& problem) {
  return (4.0 + 10.0) * static_cast<double>(problem.head_dim);
}

}  // namespace

std::string_view name(AttentionWay way) {
  constexpr std::string_view kNames[] = {"ring", "heads", "allgather"};
  return kNames[static_cast<std::size_t>(way)];
}

Support supports_way(AttentionWay way, const RingSchedule& schedule) {
  switch (way) {
    case AttentionWay::heads: return head_parallel_supports(schedule);
    case AttentionWay::gather: return gather_supports(schedule);
    case AttentionWay::ring: break;
  }
  return ring_supports(schedule.problem());
}

void parallel_attention_forward(Context& context, AttentionWay way, const RingSchedule& schedule,
                                const RingForward& views, std::string_view pinned) {
  switch (way) {
    case AttentionWay::heads: return head_parallel_forward(context, schedule, views, pinned);
    case AttentionWay::gather: return gather_attention_forward(context, schedule, views, pinned);
    case AttentionWay::ring: return ring_attention_forward(context, schedule, views, pinned);
  }
}

void parallel_attention_backward(Context& context, AttentionWay way, const RingSchedule& schedule,
                                 const RingBackward& views, std::string_view pinned) {
  switch (way) {
    case AttentionWay::heads: return head_parallel_backward(context, schedule, views, pinned);
    case AttentionWay::gather: return gather_attention_backward(context, schedule, views, pinned);
    case AttentionWay::ring: return ring_attention_backward(context, schedule, views, pinned);
  }
}

std::int64_t sent_bytes(AttentionWay way, const RingSchedule& schedule, int rank, Pass pass) {
  switch (way) {
    case AttentionWay::heads: return head_parallel_sent_bytes(schedule, rank, pass);
    case AttentionWay::gather: return gather_sent_bytes(schedule, rank, pass);
    case AttentionWay::ring: break;
  }
  return schedule.sent_bytes(rank, pass);
}

WayChoice choose_way(const RingSchedule& schedule, const WayRates& rates) {
  check(rates.flops_per_second > 0 && rates.link_bytes_per_second > 0,
        "rates of {} operations and {} bytes per second: both have to be above zero", rates.flops_per_second,
        rates.link_bytes_per_second);
  WayChoice choice;
  double all_pairs = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto pairs = static_cast<double>(schedule.pairs(rank));
    all_pairs += pairs;
    const double compute = pairs * flops_per_pair(schedule.problem()) / rates.flops_per_second;
    const auto bytes = static_cast<double>(schedule.sent_bytes(rank, Pass::forward) +
                                           schedule.sent_bytes(rank, Pass::backward));
    choice.ring_seconds = std::max({choice.ring_seconds, compute, bytes / rates.link_bytes_per_second});
  }
  if (const Support support = head_parallel_supports(schedule); !support) {
    choice.reason = fmt::format("ring: {}", support.reason());
    return choice;
  }
  const double compute =
      all_pairs / schedule.ranks() * flops_per_pair(schedule.problem()) / rates.flops_per_second;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto bytes = static_cast<double>(head_parallel_sent_bytes(schedule, rank, Pass::forward) +
                                           head_parallel_sent_bytes(schedule, rank, Pass::backward));
    choice.heads_seconds = std::max(choice.heads_seconds, compute + bytes / rates.link_bytes_per_second);
  }
  if (choice.heads_seconds < choice.ring_seconds) choice.way = AttentionWay::heads;
  choice.reason =
      fmt::format("{}: the slowest rank takes {:.3g} ms in a ring and {:.3g} ms with heads divided",
                  name(choice.way), choice.ring_seconds * 1e3, choice.heads_seconds * 1e3);
  return choice;
}

}  // namespace headroom
