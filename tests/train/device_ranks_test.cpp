// Training over ranks on a GPU, each of which is a stream of it, beside one rank there.
#include <gtest/gtest.h>

#include <array>

#include "ops/cases.h"
#include "ring_run.h"
#include "train/rank_training.h"

namespace headroom {
namespace {

class DeviceTrainingRanks : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceTrainingRanks, all_levels());

std::vector<RankLosses> train_ranks(const RankCase& c, int count) {
  constexpr std::int64_t kSteps = 3;
  std::vector<RankLosses> results(static_cast<std::size_t>(count));
  on_thread_ranks(count, {}, [&](Communicator& communicator) {
    const std::unique_ptr<Backend> backend = backend_under_test(1);
    results[static_cast<std::size_t>(communicator.ranks().rank)] =
        train_rank(c, communicator, *backend, kSteps);
  });
  return results;
}

// Every rank has the same bits. They are near those of one rank: at the first step up to the part `error`, at
// later ones, which have different weights, up to a hundred times that.
void expect_near_one(const RankCase& c, int count, double error) {
  const RankLosses alone = train_ranks(c, 1).front();
  const std::vector<RankLosses> results = train_ranks(c, count);
  for (const RankLosses& rank : results) {
    SCOPED_TRACE(fmt::format("{} on {} ranks in {} groups, sharding {}", c.name, count, c.data_ranks,
                             name(c.sharding)));
    EXPECT_EQ(rank.losses, results.front().losses);
    EXPECT_EQ(rank.norms, results.front().norms);
    for (std::size_t i = 0; i < alone.losses.size(); ++i) {
      const double part = i == 0 ? error : 100 * error;
      EXPECT_NEAR(rank.losses[i], alone.losses[i], part * alone.losses[i]) << "step " << i + 1;
      EXPECT_NEAR(rank.norms[i], alone.norms[i], 10 * part * alone.norms[i]) << "step " << i + 1;
    }
    EXPECT_NEAR(rank.evaluated, alone.evaluated, 100 * error * alone.evaluated);
  }
}

// Every case with one sharding, and the first with all of them.
TEST_P(DeviceTrainingRanks, HaveTheLossesOfOne) {
  constexpr std::array kShardings = {Sharding::none, Sharding::optimizer, Sharding::full};
  std::vector<RankCase> cases = rank_cases();
  cases.insert(cases.begin(), 2, cases.front());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].sharding = kShardings[i % kShardings.size()];
    expect_near_one(cases[i], 2, 1e-6);
  }
}

TEST_P(DeviceTrainingRanks, DivideBatchesHeadsAndHostState) {
  RankCase c = rank_cases()[1];
  c.training.config.heads_q = 4;
  c.training.config.heads_kv = 4;
  c.head_group = 2;
  expect_near_one(c, 2, 1e-6);
  c.data_ranks = 2;
  c.sharding = Sharding::full;
  c.training.offload_optimizer = true;
  c.training.layers = {.keep_all = 1, .offload = 1};
  expect_near_one(c, 4, 1e-6);
}

TEST_P(DeviceTrainingRanks, DivideTheVocabulary) {
  RankCase c = rank_cases()[1];
  c.loss_ranks = LossRanks::vocabulary;
  expect_near_one(c, 2, 1e-6);
  c.sharding = Sharding::full;
  expect_near_one(c, 2, 1e-6);
}

TEST_P(DeviceTrainingRanks, DivideSixteenBits) {
  RankCase c = rank_cases()[0];
  c.training.dtype = DType::bf16;
  for (const StatePrecision state : {StatePrecision::f32, StatePrecision::bf16, StatePrecision::eight_bit}) {
    c.state = state;
    c.sharding = state == StatePrecision::bf16 ? Sharding::full : Sharding::optimizer;
    expect_near_one(c, 2, 2e-3);
  }
}

}  // namespace
}  // namespace headroom
