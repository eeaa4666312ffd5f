#include "headroom/parallel/parallel_schedule.h"

#include "headroom/core/checked.h"
#include "parallel/gather_attention.h"
#include "parallel/head_groups.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

int ranks_of_group(AttentionWay way, int ranks, int group) {
  switch (way) {
    case AttentionWay::heads: return ranks;
    case AttentionWay::product: return group;
    default: return 1;
  }
}

RingSchedule make_ring(AttentionWay way, const AttentionProblem& whole, const AttentionForward& lists,
                       const Partition& partition, int group, std::optional<int> sampled_rank) {
  const Support support = supports_way(way, whole, partition, group);
  check(bool{support}, "attention cannot be divided over {} ranks in this way: {}", partition.ranks(),
        support.reason());
  if (way == AttentionWay::gather) {
    return {whole, lists, make_partition(PartitionKind::contiguous, 1, whole, lists)};
  }
  const int size = ranks_of_group(way, partition.ranks(), group);
  AttentionProblem problem = whole;
  problem.heads_q /= size;
  problem.heads_kv /= size;
  if (sampled_rank) return {problem, lists, partition_of_groups(partition, size), *sampled_rank / size};
  return {problem, lists, partition_of_groups(partition, size)};
}

}  // namespace

std::string name(AttentionWay way, int group) {
  switch (way) {
    case AttentionWay::ring: return "ring";
    case AttentionWay::heads: return "heads";
    case AttentionWay::product: return fmt::format("product:{}", group);
    case AttentionWay::gather: break;
  }
  return "allgather";
}

AttentionWay way_of(int group, int ranks) {
  if (group == 1) return AttentionWay::ring;
  return group == ranks ? AttentionWay::heads : AttentionWay::product;
}

Support supports_way(AttentionWay way, const AttentionProblem& whole, const Partition& partition, int group) {
  if (Support support = ring_supports(whole); !support) return support;
  const int ranks = partition.ranks();
  switch (way) {
    case AttentionWay::ring: return Support::yes();
    case AttentionWay::gather: return gather_supports(whole, partition);
    case AttentionWay::heads: return head_groups_support(whole, ranks);
    case AttentionWay::product: break;
  }
  if (group < 2 || group >= ranks || ranks % group != 0) {
    return Support::no(fmt::format(
        "{} ranks have no groups of {}: a group has at least two ranks, and there are at least two groups",
        ranks, group));
  }
  return head_groups_support(whole, group);
}

ParallelSchedule::ParallelSchedule(AttentionWay way, const AttentionProblem& whole,
                                   const AttentionForward& lists, Partition partition, int group,
                                   std::optional<int> sampled_rank)
    : way_(way),
      problem_(whole),
      partition_(std::move(partition)),
      group_(ranks_of_group(way, partition_.ranks(), group)),
      ring_(make_ring(way, whole, lists, partition_, group, sampled_rank)) {}

std::int64_t ParallelSchedule::pairs(int rank) const {
  return ring_.pairs(way_ == AttentionWay::gather ? 0 : rank / group_);
}

std::int64_t ParallelSchedule::sent_bytes(int rank, Pass pass) const {
  if (way_ == AttentionWay::gather) return gather_sent_bytes(problem_, partition_, rank, pass);
  std::int64_t bytes =
      checked_add(ring_.sent_bytes(rank / group_, pass), group_sent_bytes(*this, rank, pass));
  if (problem_.sinks && pass == Pass::backward) {
    bytes += all_reduce_traffic({rank, ranks()}, problem_.heads_q * size_bytes(DType::f32)).sent_bytes;
  }
  return bytes;
}

}  // namespace headroom
