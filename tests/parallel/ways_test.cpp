#include "headroom/parallel/ways.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headroom {
namespace {

AttentionProblem sized(std::int64_t seq, std::int64_t heads_q, std::int64_t heads_kv, const Mask& mask = {}) {
  AttentionProblem problem{
      .seq_q = seq, .seq_k = seq, .heads_q = heads_q, .heads_kv = heads_kv, .head_dim = 128};
  problem.mask = mask;
  return problem;
}

Partition cut(const AttentionProblem& problem, int ranks, PartitionKind kind = PartitionKind::contiguous) {
  return make_partition(kind, ranks, problem, {});
}

Support supports(AttentionWay way, const AttentionProblem& problem, int ranks, int group = 0) {
  return supports_way(way, problem, cut(problem, ranks), group);
}

RankRates rates_of(double flops_per_second, double link_bytes_per_second) {
  return {.forward = {.flops_per_second = flops_per_second},
          .backward = {.flops_per_second = flops_per_second},
          .link = {.bytes_per_second = link_bytes_per_second}};
}

WayChoice choose(const AttentionProblem& problem, int ranks, const RankRates& rates) {
  return choose_way(problem, {}, cut(problem, ranks), rates);
}

TEST(Ways, HeadsHaveToDivide) {
  EXPECT_TRUE(supports(AttentionWay::heads, sized(64, 8, 4), 4));
  EXPECT_THAT(supports(AttentionWay::heads, sized(64, 8, 2), 4).reason(), testing::HasSubstr("2 K/V heads"));
  Mask mask;
  mask.dilations[0] = {64, 4};
  mask.dilation_count = 1;
  EXPECT_THAT(supports(AttentionWay::heads, sized(64, 8, 4, mask), 4).reason(), testing::HasSubstr("offset"));
}

TEST(Ways, GroupsHaveToDivideRanksAndHeads) {
  const AttentionProblem problem = sized(64, 8, 2);
  EXPECT_TRUE(supports(AttentionWay::product, problem, 4, 2));
  for (const int group : {-2, 0, 1, 3, 4, 8}) {
    EXPECT_THAT(supports(AttentionWay::product, problem, 4, group).reason(), testing::HasSubstr("no groups"))
        << group;
  }
  EXPECT_THAT(supports(AttentionWay::product, problem, 8, 4).reason(), testing::HasSubstr("2 K/V heads"));
  Mask blocks;
  blocks.block_rows = blocks.block_columns = 8;
  blocks.max_blocks_per_row = 2;
  EXPECT_THAT(supports(AttentionWay::product, sized(64, 8, 2, blocks), 4, 2).reason(),
              testing::HasSubstr("block lists"));
  EXPECT_THROW(ParallelSchedule(AttentionWay::product, problem, {}, cut(problem, 4), 3), Error);
}

// The groups of a zigzag are a zigzag of groups, so that work stays equal.
TEST(Ways, GroupsHoldThePiecesOfTheirRanks) {
  AttentionProblem problem = sized(1024, 8, 4);
  problem.mask.causal = true;
  for (const PartitionKind kind : {PartitionKind::contiguous, PartitionKind::zigzag}) {
    const ParallelSchedule schedule(AttentionWay::product, problem, {}, cut(problem, 8, kind), 4);
    EXPECT_EQ(schedule.ring().partition(), cut(problem, 2, kind));
    EXPECT_EQ(schedule.ring().problem().heads_q, 2);
    EXPECT_EQ(schedule.ring().problem().heads_kv, 1);
  }
}

TEST(Ways, EveryWayComputesEveryPairOnce) {
  AttentionProblem problem = sized(1000, 8, 4);
  problem.mask.causal = true;
  const std::int64_t all = count_pairs(problem, {}, {0, 1000}, {0, 1000});
  const auto pairs = [&](AttentionWay way, int group) {
    const ParallelSchedule schedule(way, problem, {}, cut(problem, 4), group);
    std::int64_t sum = 0;
    for (int rank = 0; rank < 4; ++rank) sum += schedule.pairs(rank);
    return sum;
  };
  EXPECT_EQ(pairs(AttentionWay::ring, 0), all);
  EXPECT_EQ(pairs(AttentionWay::heads, 0), all);
  EXPECT_EQ(pairs(AttentionWay::product, 2), all);
}

// With heads, Q and O move too, each token once; in a ring K and V of every rank go to every other.
TEST(Ways, ChoiceFollowsTheLink) {
  const RankRates slow = rates_of(1e15, 1e9);
  const RankRates fast = rates_of(1e12, 1e12);
  const WayChoice bound_by_link = choose(sized(65'536, 32, 32), 16, slow);
  EXPECT_EQ(bound_by_link.way, AttentionWay::heads) << bound_by_link.reason;
  const WayChoice bound_by_work = choose(sized(65'536, 32, 32), 16, fast);
  EXPECT_EQ(bound_by_work.way, AttentionWay::ring) << bound_by_work.reason;
  const WayChoice no_heads = choose(sized(4096, 9, 3), 4, slow);
  EXPECT_EQ(no_heads.way, AttentionWay::ring);
  EXPECT_THAT(no_heads.reason, testing::HasSubstr("3 K/V heads"));
  EXPECT_THROW(static_cast<void>(choose(sized(64, 8, 2), 4, {})), Error);
}

// Where a link is slow and K/V heads are too few for all ranks, groups as large as heads allow are best.
TEST(Ways, ChoiceConsidersEveryDivisor) {
  const RankRates slow = rates_of(1e15, 1e9);
  const WayChoice choice = choose(sized(65'536, 32, 4), 12, slow);
  std::vector<int> groups;
  for (const WayEstimate& estimate : choice.estimates) {
    groups.push_back(estimate.group);
    EXPECT_EQ(estimate.refused.empty(), 4 % estimate.group == 0) << estimate.group;
    EXPECT_GE(estimate.refused.empty() ? estimate.seconds : 1e9, choice.estimates[3].seconds);
  }
  EXPECT_THAT(groups, testing::ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_EQ(choice.way, AttentionWay::product) << choice.reason;
  EXPECT_EQ(choice.group, 4);
  EXPECT_THAT(choice.reason, testing::HasSubstr("product:4 takes"));
  EXPECT_THAT(choice.reason, testing::HasSubstr("product:6 is not possible (32 query heads"));
}

}  // namespace
}  // namespace headroom
