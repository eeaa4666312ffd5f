#include "headroom/parallel/ways.h"

#include <algorithm>

#include "parallel/gather_attention.h"
#include "parallel/head_groups.h"

namespace headroom {
namespace {

WayEstimate estimate(int group, const AttentionProblem& whole, const AttentionForward& lists,
                     const Partition& partition, const RankRates& rates) {
  WayEstimate result;
  result.group = group;
  const AttentionWay way = way_of(group, partition.ranks());
  if (const Support support = supports_way(way, whole, partition, group); !support) {
    result.refused = support.reason();
  } else {
    result.seconds = play_attention(whole, lists, partition, group, rates).seconds();
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
                     const RankRates& rates) {
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
