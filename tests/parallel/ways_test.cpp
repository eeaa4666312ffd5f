#include "headroom/parallel/ways.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headroom {
namespace {

RingSchedule make(std::int64_t seq, std::int64_t heads_q, std::int64_t heads_kv, int ranks,
                  const Mask& mask = {}) {
  AttentionProblem problem{
      .seq_q = seq, .seq_k = seq, .heads_q = heads_q, .heads_kv = heads_kv, .head_dim = 128};
  problem.mask = mask;
  return {problem, {}, make_partition(PartitionKind::contiguous, ranks, problem, {})};
}

TEST(Ways, HeadsHaveToDivide) {
  EXPECT_TRUE(supports_way(AttentionWay::heads, make(64, 8, 4, 4)));
  EXPECT_THAT(supports_way(AttentionWay::heads, make(64, 8, 2, 4)).reason(),
              testing::HasSubstr("2 K/V heads"));
  Mask mask;
  mask.dilations[0] = {64, 4};
  mask.dilation_count = 1;
  EXPECT_THAT(supports_way(AttentionWay::heads, make(64, 8, 4, 4, mask)).reason(),
              testing::HasSubstr("offset"));
}

// With heads, Q and O move too, each token once; in a ring K and V of every rank go to every other.
TEST(Ways, ChoiceFollowsTheLink) {
  const WayRates slow{.flops_per_second = 1e15, .link_bytes_per_second = 1e9};
  const WayRates fast{.flops_per_second = 1e12, .link_bytes_per_second = 1e12};
  const WayChoice bound_by_link = choose_way(make(65'536, 32, 32, 16), slow);
  EXPECT_EQ(bound_by_link.way, AttentionWay::heads) << bound_by_link.reason;
  const WayChoice bound_by_work = choose_way(make(65'536, 32, 32, 16), fast);
  EXPECT_EQ(bound_by_work.way, AttentionWay::ring) << bound_by_work.reason;
  const WayChoice no_heads = choose_way(make(4096, 8, 2, 4), slow);
  EXPECT_EQ(no_heads.way, AttentionWay::ring);
  EXPECT_THAT(no_heads.reason, testing::HasSubstr("2 K/V heads"));
  EXPECT_THROW(static_cast<void>(choose_way(make(64, 8, 2, 4), {})), Error);
}

}  // namespace
}  // namespace headroom
