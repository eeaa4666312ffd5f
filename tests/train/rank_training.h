// Training as one of several ranks, on any device: what tests over CPUs, GPUs and their stand-ins share.
#pragma once

#include <vector>

#include "headroom/comm.h"
#include "headroom/train.h"
#include "train/planned_run.h"

namespace headroom {

struct RankCase {
  std::string name;
  Combination training;
  std::int64_t head_group = 1;
  int batches = 1;              // of an update
  std::int64_t data_ranks = 1;  // groups that divide a batch
  Sharding sharding = Sharding::none;
  StatePrecision state = StatePrecision::f32;
  LossRanks loss_ranks = LossRanks::tokens;
  double learning_rate = 3e-3;
};

inline std::vector<RankCase> rank_cases() {
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
inline HostBatch batch_number(const RankCase& c, std::int64_t number) {
  HostBatch batch = batch_of(c.training);
  if (number % 4 == 2) std::fill(batch.labels.begin(), batch.labels.end() - 1, kIgnore);
  return batch;
}

struct RankLosses {
  std::vector<double> losses;  // [step]
  std::vector<double> norms;   // [step], of the gradients
  double evaluated = 0;
  std::vector<std::byte> weights;  // of a rank that has all of them
};

inline Strategy strategy_of(const RankCase& c, int ranks) {
  Strategy strategy = strategy_of(c.training);
  strategy.data_ranks = ranks == 1 ? 1 : c.data_ranks;
  strategy.ring_ranks = ranks / strategy.data_ranks;
  strategy.head_group = strategy.ring_ranks % c.head_group == 0 ? c.head_group : 1;
  strategy.sharding = ranks == 1 ? Sharding::none : c.sharding;
  strategy.state = c.state;
  if (ranks > 1) strategy.loss_ranks = c.loss_ranks;
  return strategy;
}

inline TrainingProblem problem_of(const RankCase& c, std::int64_t steps) {
  TrainingProblem problem = problem_of(c.training);
  problem.state = c.state;
  problem.optimizer.learning_rate = c.learning_rate;
  problem.optimizer.steps = steps;
  return problem;
}

// One rank's part of a run; fails the test where it has not reserved what was planned.
inline RankLosses train_rank(const RankCase& c, Communicator& communicator, Backend& backend,
                             std::int64_t steps) {
  const Ranks ranks = communicator.ranks();
  const TrainingProblem problem = problem_of(c, steps);
  const Strategy strategy = strategy_of(c, ranks.count);
  const Layout layout = rehearse_training(problem, strategy, backend.description(), ranks.rank);
  Context context(backend, layout, &communicator);
  Trainer trainer(Decoder(problem.config, strategy, problem.sizes, problem.mask), problem.optimizer);
  trainer.load(context, [&](Staging&) { trainer.initialize(context, 7); });
  RankLosses result;
  std::int64_t number = 0;
  const auto fill = [&](const Samples& samples) { batch_number(c, number++).copy_to(samples); };
  for (std::int64_t step = 1; step <= steps; ++step) {
    LossSum loss;
    for (int i = 0; i < c.batches; ++i) loss += trainer.micro_step(context, fill);
    result.norms.push_back(trainer.update(context, step, loss.labels));
    result.losses.push_back(*loss.mean());
  }
  result.evaluated = *trainer.evaluate(context, fill).mean();
  trainer.save(context, [&](Staging& staging) {
    const Tensor& weights = trainer.buffers().weights;
    result.weights.resize(static_cast<std::size_t>(weights.view().bytes()));
    staging.download(result.weights, weights);
  });
  if (trainer.divides_state()) trainer.save_divided(context, [](Staging&, StateGather&) {});
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(backend.reserved_bytes(space), layout.reserved(space));
    EXPECT_EQ(context.ledger().usage(space).peak_bytes, layout.rehearsal.usage(space).peak_bytes);
  }
  return result;
}

}  // namespace headroom
