#include "headroom/parallel/ways.h"

#include <algorithm>

#include "parallel/gather_attention.h"
#include "parallel/head_groups.h"

namespace headroom {
namespace {

double flops_per_pair(const AttentionProblem& problem) {
  return (4.0 + 10.0) * static_cast<double>(problem.head_dim);
}

// Forward and backward of the slowest rank.
double seconds_of(const ParallelSchedule& schedule, const WayRates& rates) {
  const auto of_both = [&](const auto& bytes) {
    return static_cast<double>(bytes(Pass::forward) + bytes(Pass::backward)) / rates.link_bytes_per_second;
  };
  double slowest = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const double compute = static_cast<double>(schedule.pairs(rank)) * flops_per_pair(schedule.problem()) /
                           rates.flops_per_second;
    const double ring =
        of_both([&](Pass pass) { return schedule.ring().sent_bytes(rank / schedule.group(), pass); });
    const double heads = of_both([&](Pass pass) { return group_sent_bytes(schedule, rank, pass); });
    slowest = std::max(slowest, std::max(compute, ring) + heads);
  }
  return slowest;
}

WayEstimate estimate(int group, const AttentionProblem& whole, const AttentionForward& lists,
                     const Partition& partition, const WayRates& rates) {
  WayEstimate result;
  result.group = group;
  const AttentionWay way = way_of(group, partition.ranks());
  if (const Support support = supports_way(way, whole, partition, group); !support) {
    result.refused = support.reason();
  } else {
    result.seconds = seconds_of({way, whole, lists, partition, group}, rates);
  }
  return result;
}

std::string text(const WayEstimate& estimate, int ranks) {
  const std::string way = name(way_of(estimate.group, ranks), estimate.group);
  return estimate.refused.empty() ? fmt::format("{} takes {:.3g} ms", way, estimate.seconds * 1e3)
                                  : fmt::format("{} is not possible ({})", way, estimate.refused);
}

}  // namespace

void parallel_attention_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                                std::string_view pinned) {
  switch (schedule.way()) {
    case AttentionWay::ring: return ring_attention_forward(context, schedule.ring(), views, pinned);
    case AttentionWay::heads:
    case AttentionWay::product: return head_groups_forward(context, schedule, views, pinned);
    case AttentionWay::gather: return gather_attention_forward(context, schedule, views, pinned);
  }
}

void parallel_attention_backward(Context& context, const ParallelSchedule& schedule,
                                 const RingBackward& views, std::string_view pinned) {
  switch (schedule.way()) {
    case AttentionWay::ring: return ring_attention_backward(context, schedule.ring(), views, pinned);
    case AttentionWay::heads:
    case AttentionWay::product: return head_groups_backward(context, schedule, views, pinned);
    case AttentionWay::gather: return gather_attention_backward(context, schedule, views, pinned);
  }
}

WayChoice choose_way(const AttentionProblem& whole, const AttentionForward& lists, const Partition& partition,
                     const WayRates& rates) {
  check(rates.flops_per_second > 0 && rates.link_bytes_per_second > 0,
        "rates of {} operations and {} bytes per second: both have to be above zero", rates.flops_per_second,
        rates.link_bytes_per_second);
  const int ranks = partition.ranks();
  WayChoice choice;
  for (int group = 1; group <= ranks; ++group) {
    if (ranks % group == 0) choice.estimates.push_back(estimate(group, whole, lists, partition, rates));
  }
  // Infinite where refused, so that an equal ring, which comes first, is kept.
  const auto seconds = [](const WayEstimate& of) {
    return of.refused.empty() ? of.seconds : std::numeric_limits<double>::infinity();
  };
  const auto best = std::ranges::min_element(choice.estimates, {}, seconds);
  check(best->refused.empty(), "attention cannot be divided over {} ranks: {}", ranks, best->refused);
  choice.group = best->group;
  choice.way = way_of(best->group, ranks);
  choice.reason = fmt::format("forward and backward of the slowest rank: {}", text(*best, ranks));
  for (const WayEstimate& other : choice.estimates) {
    if (&other != &*best) choice.reason += fmt::format("; {}", text(other, ranks));
  }
  return choice;
}

}  // namespace headroom
