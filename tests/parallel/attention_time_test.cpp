#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/parallel.h"

namespace headroom {
namespace {

AttentionProblem sized(std::int64_t seq, bool causal) {
  AttentionProblem problem{.seq_q = seq, .seq_k = seq, .heads_q = 4, .heads_kv = 2, .head_dim = 8};
  problem.mask.causal = causal;
  return problem;
}

Partition cut(const AttentionProblem& problem, int ranks, PartitionKind kind = PartitionKind::zigzag) {
  return make_partition(kind, ranks, problem, {});
}

constexpr double kNoTime = 1e30;  // operations per second

RankRates rates_of(double flops_per_second, double link_bytes_per_second, double latency = 0) {
  return {.forward = {.flops_per_second = flops_per_second},
          .backward = {.flops_per_second = flops_per_second},
          .link = {.latency = Seconds(latency), .bytes_per_second = link_bytes_per_second}};
}

double pairs_seconds(const RingSchedule& schedule, double flops_per_pair, double flops_per_second) {
  double slowest = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    slowest =
        std::max(slowest, static_cast<double>(schedule.pairs(rank)) * flops_per_pair / flops_per_second);
  }
  return slowest;
}

TEST(AttentionTime, OfOneRankIsComputing) {
  const AttentionProblem problem = sized(100, true);
  const AttentionTime time = play_attention(problem, {}, cut(problem, 1), 1, rates_of(1e6, 1));
  EXPECT_NEAR(time.forward.seconds, 5050 * 4 * 32 / 1e6, 1e-12);
  EXPECT_NEAR(time.backward.seconds, 5050 * 4 * 80 / 1e6, 1e-12);
  EXPECT_EQ(time.forward.sent_bytes, 0);
  EXPECT_EQ(time.forward.bubbles(), 0);
}

TEST(AttentionTime, OverALinkWithoutDelaysIsThatOfTheSlowestRank) {
  for (const int ranks : {2, 3, 8}) {
    for (const bool causal : {false, true}) {
      const AttentionProblem problem = sized(251, causal);
      const RingSchedule schedule(problem, {}, cut(problem, ranks));
      const AttentionTime time = play_attention(problem, {}, cut(problem, ranks), 1, rates_of(1e6, 1e30));
      EXPECT_NEAR(time.forward.seconds / pairs_seconds(schedule, 32, 1e6), 1, 0.05);
      EXPECT_NEAR(time.forward.compute_seconds, pairs_seconds(schedule, 32, 1e6), 1e-9);
      EXPECT_NEAR(time.backward.compute_seconds, pairs_seconds(schedule, 80, 1e6), 1e-9);
    }
  }
}

// Two ranks, everybody reads everything: two transfers each way, which leave at once, one behind the other.
// In backward, gradients of a transfer (f32) leave behind it.
TEST(AttentionTime, OfMessagesAloneIsAddedUpByHand) {
  const AttentionProblem problem = sized(64, false);
  const double keys = 16.0 * 2 * 8 * 2 * 4;  // of a transfer: rows, heads, head_dim, K and V, f32
  const double latency = 3;
  const double rate = 100;
  const AttentionTime time = play_attention(problem, {}, cut(problem, 2, PartitionKind::contiguous), 1,
                                            rates_of(kNoTime, rate, latency));
  const double arrival = keys / rate + latency;
  EXPECT_NEAR(time.forward.seconds, 2 * keys / rate + latency, 1e-9);
  EXPECT_EQ(time.forward.sent_bytes, static_cast<std::int64_t>(2 * keys));
  // Keys 0 are there at `arrival`, when keys 1 are on the link. Gradients 0 leave behind those, and gradients
  // 1 when keys 1 are there and gradients 0 have left.
  const double keys_1 = 2 * keys / rate + latency;
  const double gradients_0 = std::max(arrival, 2 * keys / rate) + keys / rate;  // have left
  const double gradients_1 = std::max(gradients_0, keys_1) + keys / rate;
  EXPECT_NEAR(time.backward.seconds, gradients_1 + latency, 1e-9);
  EXPECT_EQ(time.backward.sent_bytes, static_cast<std::int64_t>(4 * keys));
}

// Forward ends with one pass over a rank's output: sums in f32 are read, the output is written in its dtype.
TEST(AttentionTime, OfTheEndOfForwardIsThatOfItsBytes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    AttentionProblem problem = sized(64, false);
    problem.dtype = dtype;
    RankRates rates = rates_of(kNoTime, kNoTime);
    rates.memory_bytes_per_second = 1000;
    const AttentionTime time = play_attention(problem, {}, cut(problem, 2), 1, rates);
    const double elements = 32.0 * 4 * 8;  // of a rank's output
    const auto bytes = static_cast<double>(size_bytes(DType::f32) + size_bytes(dtype));
    EXPECT_NEAR(time.forward.seconds, elements * bytes / 1000, 1e-9) << name(dtype);
  }
}

// A link that needs half of the time of a slot's computing is hidden behind it, but for what backward sends
// last.
TEST(AttentionTime, MessagesHideBehindComputing) {
  const AttentionProblem problem = sized(512, false);
  const Partition partition = cut(problem, 4, PartitionKind::contiguous);
  const double slot_flops = 128.0 * 64 * 4 * 32;   // 128 queries, 64 keys
  const double slot_bytes = 64.0 * 2 * 8 * 2 * 4;  // K and V in f32
  const double flops_per_second = 1e9;
  const double slot_seconds = slot_flops / flops_per_second;
  const AttentionTime hidden =
      play_attention(problem, {}, partition, 1, rates_of(flops_per_second, 2 * slot_bytes / slot_seconds));
  EXPECT_NEAR(hidden.forward.waited_seconds, 0, 1e-12);
  EXPECT_NEAR(hidden.forward.seconds, 8 * slot_seconds, 1e-9);
  const AttentionTime exposed =
      play_attention(problem, {}, partition, 1, rates_of(flops_per_second, slot_bytes / slot_seconds / 4));
  EXPECT_GT(exposed.forward.exposed_seconds(), 10 * slot_seconds);
  EXPECT_GT(exposed.forward.bubbles(), 0.5);
}

// Three ranks, everybody reads everything: four transfers each. The first two leave at once, the third when
// the first is there, the fourth when the second is.
TEST(AttentionTime, OfTransfersTwoSlotsAheadIsAddedUpByHand) {
  const AttentionProblem problem = sized(96, false);
  const double transfer = 16.0 * 2 * 8 * 2 * 4 / 100;  // on a link of 100 bytes per second
  const auto forward = [&](double latency) {
    return play_attention(problem, {}, cut(problem, 3, PartitionKind::contiguous), 1,
                          rates_of(kNoTime, 100, latency))
        .forward.seconds;
  };
  EXPECT_NEAR(forward(transfer / 2), 4 * transfer + transfer / 2, 1e-9);  // the link is never free
  EXPECT_NEAR(forward(10 * transfer), 2 * (transfer + 10 * transfer) + transfer, 1e-9);
}

// Zigzag gives a rank twice the work with one transfer that it has with another. Over a link on which the
// messages of the rank that sends most take 80 % of computing, they hide, but for one hop of backward.
TEST(AttentionTime, MessagesHideBehindUnequalSlots) {
  for (const int ranks : {4, 8}) {
    const AttentionProblem problem = sized(4096, true);
    const Partition partition = cut(problem, ranks);
    const RingSchedule schedule(problem, {}, partition);
    const auto played = [&](Pass pass) {
      const AttentionTime alone = play_attention(problem, {}, partition, 1, rates_of(1e9, 1e30));
      const PassTime& computing = pass == Pass::forward ? alone.forward : alone.backward;
      const double rate = static_cast<double>(computing.sent_bytes) / (0.8 * computing.seconds);
      const AttentionTime time = play_attention(problem, {}, partition, 1, rates_of(1e9, rate));
      const double hop = static_cast<double>(2 * schedule.most_rows() * problem.head_dim * 4) / rate;
      return pass == Pass::forward ? time.forward.seconds / computing.seconds
                                   : (time.backward.seconds - hop) / computing.seconds;
    };
    EXPECT_LE(played(Pass::forward), 1.04) << ranks;
    EXPECT_LE(played(Pass::backward), 1.04) << ranks;
  }
}

TEST(AttentionTime, SendsWhatTheScheduleSends) {
  for (const int ranks : {2, 3, 4, 7, 8}) {
    for (const char* mask : {"full", "causal", "window:33", "causal+dilated:64/2"}) {
      AttentionProblem problem = sized(301, true);
      problem.mask = parse_mask(mask);
      const PartitionKind kind = ranks % 2 == 0 ? PartitionKind::zigzag : PartitionKind::contiguous;
      for (const int group : {1, 2}) {
        if (ranks % group != 0 || problem.mask.dilation_count * group > 1) continue;
        const Partition partition = cut(problem, ranks, kind);
        const AttentionTime time = play_attention(problem, {}, partition, group, rates_of(1e9, 1e9, 1e-5));
        const ParallelSchedule schedule(way_of(group, ranks), problem, {}, partition, group);
        std::int64_t forward = 0;
        std::int64_t backward = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          forward = std::max(forward, schedule.sent_bytes(rank, Pass::forward));
          backward = std::max(backward, schedule.sent_bytes(rank, Pass::backward));
        }
        // With groups, the most of the ring and the most of the all-to-all may be of different ranks.
        const std::int64_t slack = group == 1 ? 0 : forward / 50;
        EXPECT_NEAR(time.forward.sent_bytes, forward, slack) << mask << ranks << " in groups of " << group;
        EXPECT_NEAR(time.backward.sent_bytes, backward, slack) << mask << ranks << " in groups of " << group;
      }
    }
  }
}

TEST(AttentionTime, GrowsWithLatencyAndFallsWithTheRate) {
  const AttentionProblem problem = sized(1024, true);
  const Partition partition = cut(problem, 8);
  const auto seconds = [&](double rate, double latency) {
    return play_attention(problem, {}, partition, 1, rates_of(1e9, rate, latency)).seconds();
  };
  EXPECT_LT(seconds(1e9, 0), seconds(1e8, 0));
  EXPECT_LT(seconds(1e8, 0), seconds(1e8, 1e-3));
  EXPECT_THROW(static_cast<void>(seconds(0, 0)), Error);
}

}  // namespace
}  // namespace headroom
