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

// An exchange of a rehearsed micro-step, by what this rank receives in it.
struct RehearsedExchange {
  std::string received;
  std::string stage;  // that it was started in
  // Kernels of the stage before it was started, and kernels that were started while it was under way.
  std::vector<std::string_view> before;
  std::vector<std::string_view> meanwhile;
  std::size_t started = 0;  // events
  std::size_t waited_for = 0;
};

std::vector<RehearsedExchange> exchanges_of(const RankCase& c, int ranks, std::string_view received) {
  const TrainingRehearsal rehearsal =
      rehearse(problem_of(c.training), strategy_of(c, ranks), CpuBackend(1).description());
  const Ledger& ledger = rehearsal.ledger;
  const std::vector<Event>& events = ledger.phases()[*ledger.find_phase(Phase::micro_step)].events;
  std::vector<RehearsedExchange> found;
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (record.work.kernel != "exchange") continue;
    // Between what is sent and received and the record that is waited for.
    const Event& last = events[record.events_before - 1];
    const Event& arrives = events[record.events_before];
    if (last.kind != EventKind::receive || ledger.text(last.name) != received) continue;
    RehearsedExchange exchange{.received = std::string(ledger.text(last.name)),
                               .stage = ledger.stage_path(record.stage).text(),
                               .before = {},
                               .meanwhile = {},
                               .started = record.events_before};
    const auto waits = std::ranges::find_if(events, [&](const Event& event) {
      return event.kind == EventKind::wait && event.stream == StreamId::main && event.id == arrives.id;
    });
    EXPECT_EQ(arrives.kind, EventKind::record);
    EXPECT_NE(waits, events.end());
    exchange.waited_for = static_cast<std::size_t>(waits - events.begin());
    for (const WorkRecord& other : rehearsal.micro_step) {
      if (other.work.kind != WorkKind::kernel) continue;
      const bool later = other.events_before > exchange.started;
      if (!later && ledger.stage_path(other.stage).text().starts_with(exchange.stage + "/")) {
        exchange.before.push_back(other.work.kernel);
      }
      if (later && other.events_before <= exchange.waited_for) {
        exchange.meanwhile.push_back(other.work.kernel);
      }
    }
    found.push_back(exchange);
  }
  return found;
}

// A layer's weights are asked for in the stage before its own: by the embedding for the first layer, in
// backward by the layer after it. The embedding, the loss and backward's first layer ask for their own.
TEST(TrainingRanks, GatherTheWeightsOfTheNextLayer) {
  RankCase c = rank_cases()[0];
  c.training.config.layers = 4;
  c.training.layers = {.keep_all = 1, .recompute = 3, .input_every = 3};
  c.sharding = Sharding::full;
  c.data_ranks = 2;
  std::vector<std::string> asked;
  for (const RehearsedExchange& exchange : exchanges_of(c, 2, "gathered weights")) {
    asked.push_back(exchange.stage);
  }
  const std::vector<std::string> expected = {
      "forward/embedding", "forward/embedding", "forward/layer 0", "forward/layer 1", "forward/layer 2",
      "loss", "loss",
      // Of layers 1 to 3 the first has its input: 1 and 2 run again for 3, and their inputs stay.
      "backward/layer 3/again", "backward/layer 3/again", "backward/layer 3/again", "backward/layer 3",
      "backward/layer 2", "backward/layer 1"};
  EXPECT_EQ(asked, expected);
}

// A layer's gradients are sent when the backward of the layer before it begins, and waited for when that has
// ended; those of the first layer while the embedding's are made. Where ranks exchange keys and values in
// attention, they are sent between its forward, where that is run again, and the MLP's backward.
TEST(TrainingRanks, AddGradientsUpWhileTheNextLayerComputes) {
  RankCase c = rank_cases()[0];
  c.training.config.layers = 4;
  c.training.layers = {.keep_all = 1, .recompute = 3, .input_every = 3};
  c.sharding = Sharding::full;
  for (const std::int64_t groups : {2, 1}) {
    const bool ring = groups == 1;
    c.data_ranks = groups;
    const std::vector<RehearsedExchange> sums = exchanges_of(c, 2, "parts of a sum");
    std::vector<std::string> stages;
    for (const RehearsedExchange& sum : sums) stages.push_back(sum.stage);
    EXPECT_EQ(stages, (std::vector<std::string>{"backward/layer 2", "backward/layer 1", "backward/layer 0",
                                                "backward"}));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto has = [](const std::vector<std::string_view>& kernels, std::string_view kernel) {
        return std::ranges::find(kernels, kernel) != kernels.end();
      };
      if (i > 0) {
        EXPECT_GT(sums[i].started, sums[i - 1].waited_for) << i;  // one at a time
      }
      if (i + 1 == sums.size()) {
        EXPECT_TRUE(has(sums[i].meanwhile, "embedding backward"));
        continue;
      }
      EXPECT_TRUE(has(sums[i].meanwhile, "mlp backward")) << i;
      EXPECT_TRUE(has(sums[i].meanwhile, "attention backward")) << i;
      const bool again = i < 2;  // layer 0 has kept everything
      EXPECT_EQ(has(sums[i].meanwhile, "attention"), again && !ring) << i;
      EXPECT_EQ(has(sums[i].before, "attention"), again && ring) << i;
      EXPECT_FALSE(has(sums[i].before, "mlp backward")) << i;
    }
  }
}

// What a layer's sum takes meanwhile: its gradients, and of the rank's slice the parts of all others.
TEST(TrainingRanks, HoldTheGradientsOfTwoLayers) {
  RankCase c = rank_cases()[0];
  c.training.config.layers = 3;
  c.training.layers = {.keep_all = 3};
  c.sharding = Sharding::full;
  c.data_ranks = 2;
  const Layout layout =
      rehearse_training(problem_of(c.training), strategy_of(c, 2), CpuBackend(1).description(), 1);
  const auto held = [&](std::int64_t layer, Category category) {
    const StagePath path{{StageKind::backward}, {StageKind::layer, layer}};
    for (const StageUsage& row : usage_by_stage(layout.rehearsal, Space::device)) {
      if (row.phase == Phase::micro_step && row.stage == path) {
        return row.at_peak[static_cast<std::size_t>(category)];
      }
    }
    return std::int64_t{-1};
  };
  const Shards shards(ParameterTable(c.training.config), Sharding::full, 2);
  const std::size_t unit = 2;  // every layer's is as large
  const std::int64_t unit_bytes = 4 * (shards.unit_begins()[unit + 1] - shards.unit_begins()[unit]);
  EXPECT_EQ(held(1, Category::gradients) - held(2, Category::gradients), unit_bytes);
  EXPECT_EQ(held(0, Category::gradients), held(1, Category::gradients));
  EXPECT_EQ(held(2, Category::communication), 0);
  EXPECT_EQ(held(1, Category::communication), 4 * shards.slices(1)[unit].elements);
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
