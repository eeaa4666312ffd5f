// Ranks that divide sequences, batches and the training state train what one rank trains, and take what was
// planned.
#include <gtest/gtest.h>

#include <cmath>

#include "ring_run.h"
#include "train/rank_training.h"

namespace headroom {
namespace {

constexpr std::int64_t kSteps = 20;

std::vector<RankLosses> train_ranks(const RankCase& c, int count, std::int64_t steps = kSteps) {
  std::vector<RankLosses> results(static_cast<std::size_t>(count));
  on_thread_ranks(count, {}, [&](Communicator& communicator) {
    CpuBackend backend(1);
    results[static_cast<std::size_t>(communicator.ranks().rank)] =
        train_rank(c, communicator, backend, steps);
  });
  return results;
}

void expect_same_training(const RankCase& c, int most_ranks) {
  const RankLosses alone = train_ranks(c, 1).front();
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (int ranks = 2; ranks <= most_ranks; ++ranks) {
    if (ranks % c.data_ranks != 0) continue;
    const std::vector<RankLosses> results = train_ranks(c, ranks);
    for (const RankLosses& rank : results) {
      const auto text = fmt::format("{}, {} ranks in {} groups, sharding {}", c.name, ranks, c.data_ranks,
                                    name(c.sharding));
      EXPECT_EQ(rank.losses, results.front().losses) << text;  // every rank has the same bits
      const bool whole = c.sharding != Sharding::full;
      EXPECT_TRUE(!whole || rank.weights == results.front().weights) << text;
      EXPECT_NEAR(rank.losses.front(), alone.losses.front(), 1e-6 * alone.losses.front()) << text;
      EXPECT_NEAR(rank.losses.back(), alone.losses.back(), 1e-4 * alone.losses.back()) << text;
      EXPECT_NEAR(rank.evaluated, alone.evaluated, 1e-4 * alone.evaluated) << text;
    }
  }
}

TEST(TrainingRanks, HaveTheLossesOfOne) {
  for (const RankCase& c : rank_cases()) expect_same_training(c, 4);
}

TEST(TrainingRanks, DivideTheState) {
  for (RankCase c : rank_cases()) {
    for (const Sharding sharding : {Sharding::optimizer, Sharding::full}) {
      c.sharding = sharding;
      expect_same_training(c, 4);
    }
  }
}

TEST(TrainingRanks, DivideTheBatch) {
  for (RankCase c : rank_cases()) {
    c.data_ranks = 2;
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
      c.sharding = sharding;
      expect_same_training(c, 4);
    }
  }
}

// With 16-bit weights the master weights are divided too, and with narrow states there are none.
TEST(TrainingRanks, DivideStatesOfEveryPrecision) {
  RankCase c = rank_cases()[1];
  c.training.dtype = DType::bf16;
  for (const bool on_host : {false, true}) {
    c.training.offload_optimizer = on_host;
    for (const StatePrecision state :
         {StatePrecision::f32, StatePrecision::bf16, StatePrecision::eight_bit}) {
      c.state = state;
      c.sharding = Sharding::none;
      const RankLosses whole = train_ranks(c, 3).front();
      for (const Sharding sharding : {Sharding::optimizer, Sharding::full}) {
        c.sharding = sharding;
        for (const RankLosses& rank : train_ranks(c, 3)) {
          // Sums are added up in another order, and rounded to 16 bits.
          EXPECT_NEAR(rank.losses.back(), whole.losses.back(), 1e-2 * whole.losses.back())
              << name(state) << " " << name(sharding);
        }
      }
    }
  }
}

// What a rehearsal says of a rank is what the rank reserves; train_rank compares the two.
TEST(TrainingRanks, ReserveWhatWasPlanned) {
  int combinations = 0;
  for (RankCase c : rank_cases()) {
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
      for (const int ranks : {1, 2, 3, 4, 5}) {
        if (ranks == 1 && sharding != Sharding::none) continue;
        for (const std::int64_t groups : {1, 2}) {
          if (ranks % groups != 0) continue;
          c.sharding = sharding;
          c.data_ranks = groups;
          c.training.offload_optimizer = combinations % 3 == 1;
          c.training.layers = combinations % 2 == 0 ? LayerPolicy{.recompute = 2, .input_every = 2}
                                                    : LayerPolicy{.keep_all = 1, .offload = 1};
          c.training.dtype = combinations % 5 == 2 ? DType::bf16 : DType::f32;
          const std::vector<RankLosses> results = train_ranks(c, ranks, 1);
          for (const RankLosses& rank : results) EXPECT_EQ(rank.losses, results.front().losses);
          ++combinations;
        }
      }
    }
  }
  EXPECT_GE(combinations, 60);
}

TEST(TrainingRanks, DivideHeadsToo) {
  RankCase c = rank_cases()[1];
  for (const std::int64_t group : {2, 4}) {
    c.head_group = group;
    c.training.config.heads_q = 4;
    c.training.config.heads_kv = 4;
    expect_same_training(c, 4);
  }
}

TEST(TrainingRanks, DivideTheActivations) {
  RankCase c = rank_cases()[0];
  c.training.sizes.context = 1024;
  c.training.layers = {.keep_all = 2};
  const DeviceDescription device = CpuBackend(1).description();
  const auto activations = [&](int ranks, int rank) {
    const Layout layout = rehearse_training(problem_of(c.training), strategy_of(c, ranks), device, rank);
    return layout.rehearsal.usage(Space::device).peak_bytes;
  };
  for (int rank = 0; rank < 4; ++rank) EXPECT_LT(activations(4, rank), activations(1, 0) / 2) << rank;
}

// A rank of four has a quarter of the moments, and of the master weights beside 16-bit weights.
TEST(TrainingRanks, DivideTheMemoryOfTheState) {
  RankCase c = rank_cases()[0];
  c.training.dtype = DType::bf16;
  const DeviceDescription device = CpuBackend(1).description();
  const auto state_bytes = [&](Sharding sharding, int rank) {
    c.sharding = sharding;
    const Layout layout = rehearse_training(problem_of(c, 1), strategy_of(c, 4), device, rank);
    std::int64_t bytes = 0;
    for (const LiveBlock& block : blocks_at_peak(layout.rehearsal, Space::device)) {
      if (block.name == "master weights" || block.name.ends_with("moments")) bytes += block.bytes;
    }
    return bytes;
  };
  std::int64_t sum = 0;
  const std::int64_t whole = state_bytes(Sharding::none, 0);
  for (int rank = 0; rank < 4; ++rank) {
    const std::int64_t own = state_bytes(Sharding::optimizer, rank);
    EXPECT_NEAR(static_cast<double>(own), static_cast<double>(whole) / 4, 12 * ParameterTable::kAlignment);
    sum += own;
  }
  EXPECT_EQ(sum, whole);
}

TEST(TrainingRanks, RefuseWhatTheyCannotDivide) {
  RankCase c = rank_cases()[0];
  c.training.sizes.context = 3;
  const auto rehearse = [&](int ranks) {
    static_cast<void>(
        rehearse_training(problem_of(c.training), strategy_of(c, ranks), CpuBackend(1).description()));
  };
  rehearse(3);
  EXPECT_THROW(rehearse(4), Error);
  c.training.sizes.context = 61;
  c.data_ranks = 3;  // of a batch of two sequences
  EXPECT_THROW(rehearse(3), Error);
}

}  // namespace
}  // namespace headroom
