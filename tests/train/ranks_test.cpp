// Ranks that divide sequences, batches and the training state train what one rank trains, and take what was
// planned.
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
  int batches = 1;              // of an update
  std::int64_t data_ranks = 1;  // groups that divide a batch
  Sharding sharding = Sharding::none;
  StatePrecision state = StatePrecision::f32;
  LossRanks loss_ranks = LossRanks::tokens;
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
  std::vector<std::byte> weights;  // of a rank that has all of them
};

Strategy strategy_of(const RankCase& c, int ranks) {
  Strategy strategy = strategy_of(c.training);
  strategy.data_ranks = ranks == 1 ? 1 : c.data_ranks;
  strategy.ring_ranks = ranks / strategy.data_ranks;
  strategy.head_group = strategy.ring_ranks % c.head_group == 0 ? c.head_group : 1;
  strategy.sharding = ranks == 1 ? Sharding::none : c.sharding;
  strategy.state = c.state;
  if (ranks > 1) strategy.loss_ranks = c.loss_ranks;
  return strategy;
}

TrainingProblem problem_of(const RankCase& c, std::int64_t steps) {
  TrainingProblem problem = problem_of(c.training);
  problem.state = c.state;
  problem.optimizer.learning_rate = 3e-3;
  problem.optimizer.steps = steps;
  return problem;
}

RankLosses train_rank(const RankCase& c, Communicator& communicator, std::int64_t steps) {
  const Ranks ranks = communicator.ranks();
  const TrainingProblem problem = problem_of(c, steps);
  const Strategy strategy = strategy_of(c, ranks.count);
  CpuBackend backend(1);
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
    static_cast<void>(trainer.update(context, step, loss.labels));
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

std::vector<RankLosses> train_ranks(const RankCase& c, int count, std::int64_t steps = kSteps) {
  std::vector<RankLosses> results(static_cast<std::size_t>(count));
  on_thread_ranks(count, {}, [&](Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.ranks().rank)] = train_rank(c, communicator, steps);
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
                                    name(c.sharding)) +
                        fmt::format(", the loss divides {}", name(c.loss_ranks));
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

// Words of 67 do not divide evenly, and the model ties its embedding.
TEST(TrainingRanks, DivideTheVocabulary) {
  for (RankCase c : rank_cases()) {
    c.loss_ranks = LossRanks::vocabulary;
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
      c.sharding = sharding;
      expect_same_training(c, 4);
    }
  }
}

// An output weight of its own, more ranks than words of a slice, chunks of few tokens, every state.
TEST(TrainingRanks, DivideTheVocabularyOfEveryModel) {
  RankCase c = rank_cases()[1];
  c.loss_ranks = LossRanks::vocabulary;
  c.training.loss_chunk = 7;
  for (const std::int64_t vocab : {67, 3}) {
    for (const bool tied : {false, true}) {
      c.training.config.vocab = vocab;
      c.training.config.tied_embeddings = tied;
      for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
        c.sharding = sharding;
        expect_same_training(c, 4);
      }
    }
  }
  c = rank_cases()[1];
  c.training.dtype = DType::bf16;
  for (const StatePrecision state : {StatePrecision::f32, StatePrecision::bf16, StatePrecision::eight_bit}) {
    c.state = state;
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
      c.sharding = sharding;
      c.loss_ranks = LossRanks::tokens;
      const RankLosses by_tokens = train_ranks(c, 3).front();
      c.loss_ranks = LossRanks::vocabulary;
      for (const RankLosses& rank : train_ranks(c, 3)) {
        EXPECT_NEAR(rank.losses.front(), by_tokens.losses.front(), 2e-3 * by_tokens.losses.front());
        EXPECT_NEAR(rank.losses.back(), by_tokens.losses.back(), 1e-2 * by_tokens.losses.back())
            << name(state) << " " << name(sharding);
      }
    }
  }
}

// With weights divided, the loss holds a slice of the output weight and of its gradient, and not all of them.
TEST(TrainingRanks, HoldTheirWordsAlone) {
  RankCase c = rank_cases()[0];
  c.training.config.vocab = 4096;
  c.sharding = Sharding::full;
  const auto loss_peak = [&](LossRanks divided) {
    c.loss_ranks = divided;
    const Layout layout =
        rehearse_training(problem_of(c.training), strategy_of(c, 4), CpuBackend(1).description(), 0);
    for (const StageUsage& row : usage_by_stage(layout.rehearsal, Space::device)) {
      if (row.phase == Phase::micro_step && row.stage == StagePath{{StageKind::loss}}) return row.peak_bytes;
    }
    return std::int64_t{0};
  };
  const std::int64_t weight_bytes = 4096 * c.training.config.hidden * 4;
  EXPECT_GT(loss_peak(LossRanks::tokens), 2 * weight_bytes);
  EXPECT_LT(loss_peak(LossRanks::vocabulary), loss_peak(LossRanks::tokens) - 3 * weight_bytes / 2);
}

// A layer's weights are asked for in the stage before its own: by the embedding for the first layer, in
// backward by the layer after it. The last layer, the loss and backward's first layer ask for their own.
TEST(TrainingRanks, GatherTheWeightsOfTheNextLayer) {
  RankCase c = rank_cases()[0];
  c.training.config.layers = 4;
  c.training.layers = {.keep_all = 1, .recompute = 3, .input_every = 3};
  c.sharding = Sharding::full;
  c.data_ranks = 2;
  const TrainingRehearsal rehearsal =
      rehearse(problem_of(c.training), strategy_of(c, 2), CpuBackend(1).description());
  std::vector<std::string> asked;
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (record.work.kernel == "exchange") asked.push_back(rehearsal.ledger.stage_path(record.stage).text());
  }
  const std::vector<std::string> expected = {
      "forward/embedding", "forward/embedding", "forward/layer 0", "forward/layer 1", "forward/layer 2",
      "loss", "loss",
      // Of layers 1 to 3 the first has its input: 1 and 2 run again for 3, and their inputs stay.
      "backward/layer 3/again", "backward/layer 3/again", "backward/layer 3/again", "backward/layer 3",
      "backward/layer 2", "backward/layer 1"};
  EXPECT_EQ(asked, expected);
}

TEST(TrainingRanks, DivideTheVocabularyInGroups) {
  for (RankCase c : {rank_cases()[1], rank_cases()[2]}) {
    c.loss_ranks = LossRanks::vocabulary;
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
          c.loss_ranks = combinations % 7 < 3 ? LossRanks::vocabulary : LossRanks::tokens;
          c.training.loss_chunk = combinations % 4 == 3 ? 7 : 0;
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
  Strategy strategy = strategy_of(rank_cases()[0], 1);
  strategy.loss_ranks = LossRanks::vocabulary;
  EXPECT_THROW(validate(strategy, 2), Error);
  strategy.ring_ranks = 2;
  validate(strategy, 2);
  strategy.loss_chunk_vocab = 16;
  EXPECT_THROW(validate(strategy, 2), Error);
}

}  // namespace
}  // namespace headroom
