// Training over ranks that are streams of one GPU: layers of a real model's size, and whole runs.
#include <gtest/gtest.h>

#include <cmath>

#include "core/temporary_folder.h"
#include "cuda/gpu_test.h"
#include "headroom/core/bytes.h"
#include "headroom/jobs/train.h"
#include "ring_run.h"
#include "train/rank_training.h"

namespace headroom {
namespace {

class CudaTrainingRanks : public GpuTest {};

std::vector<RankLosses> train_ranks(const RankCase& c, int count) {
  constexpr std::int64_t kSteps = 2;
  std::vector<RankLosses> results(static_cast<std::size_t>(count));
  on_thread_ranks(count, {}, [&](Communicator& communicator) {
    CudaBackend backend(0);
    results[static_cast<std::size_t>(communicator.ranks().rank)] =
        train_rank(c, communicator, backend, kSteps);
  });
  return results;
}

// The largest difference of a loss, and of a norm, as a part of it.
struct Difference {
  double loss = 0;
  double norm = 0;
};
Difference difference(const RankLosses& of, const RankLosses& from) {
  Difference largest;
  for (std::size_t i = 0; i < from.losses.size(); ++i) {
    largest.loss = std::max(largest.loss, std::abs(of.losses[i] / from.losses[i] - 1));
    largest.norm = std::max(largest.norm, std::abs(of.norms[i] / from.norms[i] - 1));
  }
  return largest;
}

// Ranks may be off by twice what one rank in bf16 is. Since that may be little by chance, also by a few
// hundredths of bf16's unit: losses are means over a thousand tokens.
TEST_F(CudaTrainingRanks, LayersOfQwen3AreThoseOfOneRank) {
  constexpr std::int64_t kNeeded = 32 * kGiB;
  if (cuda_memory(0).free_bytes < kNeeded) GTEST_SKIP() << "needs " << format_bytes(kNeeded);
  RankCase c{.name = "Qwen3-4B, 2 layers",
             .training = {.config = find_model("qwen3-4b"),
                          .sizes = {.batch = 1, .context = 1024},
                          .layers = {.keep_all = 2}}};
  c.training.config.layers = 2;
  c.training.config.vocab = 8192;
  c.learning_rate = 1e-5;  // so that the second step is as well conditioned as the first
  const RankLosses exact = train_ranks(c, 1).front();
  c.training.dtype = DType::bf16;
  const Difference alone = difference(train_ranks(c, 1).front(), exact);
  for (const int ranks : {2, 4}) {
    for (const Sharding sharding : {Sharding::none, Sharding::full}) {
      c.sharding = sharding;
      const std::vector<RankLosses> results = train_ranks(c, ranks);
      const Difference over_ranks = difference(results.front(), exact);
      SCOPED_TRACE(fmt::format("{} ranks, sharding {}: loss {:.3g} ({:.3g} on one), norm {:.3g} ({:.3g})",
                               ranks, name(sharding), over_ranks.loss, alone.loss, over_ranks.norm,
                               alone.norm));
      constexpr double kUnit = 0x1p-8;
      EXPECT_LE(over_ranks.loss, 2 * alone.loss + kUnit / 100);
      EXPECT_LE(over_ranks.norm, 2 * alone.norm + kUnit / 20);
      for (const RankLosses& rank : results) {
        EXPECT_EQ(rank.losses, results.front().losses);
        EXPECT_EQ(rank.norms, results.front().norms);
      }
    }
  }
}

// From options to checkpoints, with budgets that ranks of one GPU share; also what the planner chooses.
TEST_F(CudaTrainingRanks, RunsAreThoseOfOneRank) {
  const TemporaryFolder folder;
  const auto run = [&](std::int64_t ranks, const std::optional<std::string>& shard, std::string_view name,
                       std::int64_t last_step) {
    TrainingOptions options;
    options.model = "demo";
    options.data = "recall";
    options.context = 512;
    options.batch = 2;
    options.dtype = "f32";
    options.optimizer.steps = 6;
    options.out = (folder / name).string();
    options.devices = {"cuda:0"};
    options.pins.ranks = ranks;
    options.pins.shard = shard;
    options.resume = latest_checkpoint(options.out).has_value();
    TrainingPlan plan = plan_training(options);
    EXPECT_EQ(plan.ranks(), ranks);
    std::int64_t step = 0;
    const TrainingResult result = train(plan, {.step = [&](const StepReport& report) { step = report.step; },
                                               .stop = [&] { return step == last_step; }});
    EXPECT_EQ(std::ssize(result.rank_live_peak_bytes), ranks);
    return result.last_loss.value();
  };
  const double alone = run(1, std::nullopt, "alone", 6);
  EXPECT_NEAR(run(2, std::nullopt, "chosen", 6), alone, 1e-4 * alone);
  for (const std::string shard : {"none", "optimizer", "full"}) {
    for (const std::int64_t ranks : {2, 4}) {
      const std::string name = fmt::format("{} {}", ranks, shard);
      EXPECT_NEAR(run(ranks, shard, name, 6), alone, 1e-4 * alone) << name;
    }
  }
  // A divided state is gathered into the checkpoint, and read from it by other ranks.
  static_cast<void>(run(2, "full", "moved", 2));
  static_cast<void>(run(4, "optimizer", "moved", 4));
  EXPECT_NEAR(run(1, std::nullopt, "moved", 6), alone, 1e-4 * alone);
}

}  // namespace
}  // namespace headroom
