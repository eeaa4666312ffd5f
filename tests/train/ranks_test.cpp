// Ranks that divide every sequence train what one rank trains, and take what was planned.
#include <gtest/gtest.h>

#include <cmath>

#include "headroom/comm.h"
#include "headroom/train.h"
#include "ring_run.h"
#include "train/planned_run.h"

namespace headroom {
namespace {

constexpr std::int64_t kSteps = 20;

struct RankCase {
  std::string name;
  Combination training;
  std::int64_t head_group = 1;
  int batches = 1;  // of an update
};

std::vector<RankCase> rank_cases() {
  ModelConfig model = small_model(true, true);
  model.layers = 2;
  model.vocab = 67;
  ModelConfig sliding = model;
  sliding.sliding_window = 9;
  sliding.layer_attention = {AttentionKind::sliding, AttentionKind::full};
  const Combination plain{
      .config = model, .sizes = {.batch = 2, .context = 61}, .layers = {.keep_attention = 1, .recompute = 1}};
  const auto with = [&](const auto& change) {
    Combination changed = plain;
    change(changed);
    return changed;
  };
  return {{"causal", plain},
          {"documents", with([](Combination& c) { c.sizes.max_documents = 5; })},
          {"accumulation", with([](Combination& c) { c.layers = {.keep_all = 2}; }), 1, 3},
          {"window", with([](Combination& c) { c.mask = "window:7"; })},
          {"dilated", with([](Combination& c) { c.mask = "causal+dilated:16/2"; })},
          {"dilated documents", with([](Combination& c) {
             c.mask = "causal+dilated:16/2";
             c.sizes.max_documents = 5;
           })},
          {"sliding layers", with([&](Combination& c) { c.config = sliding; })}};
}

// In every fourth batch the last token alone has a label, so that all ranks but one have none.
HostBatch batch_number(const RankCase& c, std::int64_t number) {
  HostBatch batch = batch_of(c.training);
  if (number % 4 == 2) std::fill(batch.labels.begin(), batch.labels.end() - 1, kIgnore);
  return batch;
}

struct RankLosses {
  std::vector<double> losses;  // [step]
  double evaluated = 0;
};

Strategy strategy_of(const RankCase& c, int ranks) {
  Strategy strategy = strategy_of(c.training);
  strategy.ring_ranks = ranks;
  strategy.head_group = ranks % c.head_group == 0 ? c.head_group : 1;
  return strategy;
}

RankLosses train_rank(const RankCase& c, Communicator& communicator) {
  const Ranks ranks = communicator.ranks();
  TrainingProblem problem = problem_of(c.training);
  problem.optimizer.learning_rate = 3e-3;
  problem.optimizer.steps = kSteps;
  const Strategy strategy = strategy_of(c, ranks.count);
  CpuBackend backend(1);
  const Layout layout = rehearse_training(problem, strategy, backend.description(), ranks.rank);
  Context context(backend, layout, &communicator);
  Trainer trainer(Decoder(problem.config, strategy, problem.sizes, problem.mask), problem.optimizer);
  trainer.load(context, [&](Staging&) { trainer.initialize(context, 7); });
  RankLosses result;
  std::int64_t number = 0;
  const auto fill = [&](const Samples& samples) { batch_number(c, number++).copy_to(samples); };
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    LossSum loss;
    for (int i = 0; i < c.batches; ++i) loss += trainer.micro_step(context, fill);
    static_cast<void>(trainer.update(context, step, loss.labels));
    result.losses.push_back(*loss.mean());
  }
  result.evaluated = *trainer.evaluate(context, fill).mean();
  trainer.save(context, [](Staging&) {});
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(backend.reserved_bytes(space), layout.reserved(space));
    EXPECT_EQ(context.ledger().usage(space).peak_bytes, layout.rehearsal.usage(space).peak_bytes);
  }
  return result;
}

std::vector<RankLosses> train_ranks(const RankCase& c, int count) {
  std::vector<RankLosses> results(static_cast<std::size_t>(count));
  on_thread_ranks(count, {}, [&](Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.ranks().rank)] = train_rank(c, communicator);
  });
  return results;
}

void expect_same_training(const RankCase& c, int most_ranks) {
  const RankLosses alone = train_ranks(c, 1).front();
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (int ranks = 2; ranks <= most_ranks; ++ranks) {
    const std::vector<RankLosses> results = train_ranks(c, ranks);
    for (const RankLosses& rank : results) {
      const auto text = fmt::format("{}, {} ranks", c.name, ranks);
      EXPECT_EQ(rank.losses, results.front().losses) << text;  // every rank has the same bits
      EXPECT_NEAR(rank.losses.front(), alone.losses.front(), 1e-6 * alone.losses.front()) << text;
      EXPECT_NEAR(rank.losses.back(), alone.losses.back(), 1e-4 * alone.losses.back()) << text;
      EXPECT_NEAR(rank.evaluated, alone.evaluated, 1e-4 * alone.evaluated) << text;
    }
  }
}

TEST(TrainingRanks, HaveTheLossesOfOne) {
  for (const RankCase& c : rank_cases()) expect_same_training(c, 4);
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

TEST(TrainingRanks, RefuseWhatTheyCannotDivide) {
  RankCase c = rank_cases()[0];
  c.training.sizes.context = 3;
  const auto rehearse = [&](int ranks) {
    static_cast<void>(
        rehearse_training(problem_of(c.training), strategy_of(c, ranks), CpuBackend(1).description()));
  };
  rehearse(3);
  EXPECT_THROW(rehearse(4), Error);
}

}  // namespace
}  // namespace headroom
