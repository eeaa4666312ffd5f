// Memory over ranks is that of a short rehearsal, of one rank for each class that takes the same.
#include "plan/rank_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "headroom/plan/catalogue.h"

namespace headroom {
namespace {

struct Case {
  const char* device;
  const char* mask;
  std::int64_t context;
  std::int64_t group;
  std::int64_t sliding;  // window of every second layer; 0: none
};

TrainingProblem problem_of(const Case& c) {
  TrainingProblem problem;
  problem.config = find_model("demo");
  problem.config.layers = 2;
  if (c.group > 1) {
    problem.config.heads_q = 4;
    problem.config.heads_kv = 2;
  }
  problem.config.sliding_window = c.sliding;
  if (c.sliding > 0) problem.config.layer_attention = {AttentionKind::sliding, AttentionKind::full};
  problem.sizes = {.batch = 2, .context = c.context};
  problem.mask = parse_mask(c.mask);
  problem.compute_dtype = c.device == std::string_view("cpu") ? DType::f32 : DType::bf16;
  return problem;
}

DeviceDescription device_of(const Case& c) {
  if (c.device != std::string_view("cpu")) return find_in_catalogue(c.device).device;
  DeviceDescription device;
  device.cores = 2;
  return device;
}

// Every rank: the short rehearsal takes the bytes of the whole one, and so do all ranks of its class. Returns
// the number of classes.
std::int64_t check_classes(const TrainingProblem& problem, const Strategy& strategy,
                           const DeviceDescription& device) {
  const CostModel costs(device, problem.compute_dtype);
  RankPlan plan(costs, device);
  const RankClasses& found = plan.classes(problem, strategy);
  std::vector<Layout> of_class;
  std::vector<double> seconds_of_class;
  std::int64_t most = 0;
  std::int64_t most_outweighed = 0;
  const AttentionTime long_pass{.forward = {.seconds = 0.7}, .backward = {.seconds = 1.9}};
  const RankedAttention attention{long_pass, long_pass};
  for (const RankClass& like : found.classes) {
    TrainingRehearsal rehearsal = rehearse_memory(problem, strategy, device, like.first);
    const RecordSeconds seconds(costs, problem.config, rehearsal, attention);
    seconds_of_class.push_back(seconds.of(Phase::micro_step, rehearsal.micro_step));
    of_class.push_back(make_layout(std::move(rehearsal.ledger)));
    // Classes with the same rehearsal take the same bytes and the same time, to the last digit.
    const auto same = static_cast<std::size_t>(like.rehearsed);
    EXPECT_EQ(of_class.back().reserved(Space::device), of_class[same].reserved(Space::device));
    EXPECT_EQ(of_class.back().reserved(Space::host), of_class[same].reserved(Space::host));
    EXPECT_EQ(seconds_of_class.back(), seconds_of_class[same]);
    std::int64_t& largest = like.outweighed ? most_outweighed : most;
    largest = std::max(largest, of_class.back().reserved(Space::device));
  }
  EXPECT_GE(most, most_outweighed);
  EXPECT_EQ(std::ssize(found.of_rank), strategy.ranks());
  for (int rank = 0; rank < strategy.ranks(); ++rank) {
    const Layout whole = rehearse_training(problem, strategy, device, rank);
    const Layout& like = of_class[static_cast<std::size_t>(found.of_rank[static_cast<std::size_t>(rank)])];
    for (const Space space : {Space::device, Space::host}) {
      EXPECT_EQ(like.reserved(space), whole.reserved(space))
          << device.name << ", rank " << rank << " of " << describe_ranks(strategy);
      EXPECT_EQ(like.rehearsal.usage(space).peak_bytes, whole.rehearsal.usage(space).peak_bytes);
    }
  }
  return std::ssize(of_class);
}

Strategy strategy_of(const TrainingProblem& problem, std::int64_t ring_ranks) {
  return {.layers = {.keep_attention = 1, .recompute = 1},
          .loss_chunk_tokens = 32,
          .mlp_tile_tokens = 64,
          .ring_ranks = ring_ranks,
          .compute_dtype = problem.compute_dtype};
}

TEST(RankPlan, AClassTakesTheBytesOfEachOfItsRanks) {
  const std::array cases = {Case{"cpu", "causal", 251, 1, 0},
                            Case{"h200", "causal", 512, 1, 0},
                            Case{"h200", "causal", 1009, 2, 0},
                            Case{"cpu", "window:21", 251, 1, 0},
                            Case{"h200", "causal+dilated:64/2", 200, 1, 0},
                            Case{"h200", "causal+dilated:777/3", 20'011, 1, 0},
                            Case{"cpu", "causal+dilated:700/5", 1531, 1, 0},
                            Case{"cpu", "causal", 333, 1, 17}};
  std::int64_t ranks_rehearsed = 0;
  std::int64_t classes = 0;
  for (const Case& c : cases) {
    const TrainingProblem problem = problem_of(c);
    for (std::int64_t ranks = 2; ranks <= 16; ++ranks) {
      Strategy strategy = strategy_of(problem, ranks);
      strategy.head_group = ranks % c.group == 0 ? c.group : 1;
      classes += check_classes(problem, strategy, device_of(c));
      ranks_rehearsed += ranks;
    }
  }
  EXPECT_EQ(ranks_rehearsed, 8 * 135);
  EXPECT_LT(classes, ranks_rehearsed * 3 / 4);  // in sequences this short, pieces of few tokens differ most
}

TEST(RankPlan, ClassesShareARehearsalWhereWorkspacesAreEqual) {
  const std::vector<RankMemory> ranks = {{{1}, {7}, {10, 20}}, {{2}, {7}, {10, 20}}, {{3}, {7}, {10, 30}},
                                         {{4}, {7}, {11, 20}}, {{1}, {7}, {10, 20}}, {{5}, {8}, {10, 20}},
                                         {{6}, {7}, {10, 30}}};
  const RankClasses found = rank_classes(ranks);
  EXPECT_EQ(found.of_rank, (std::vector<std::int32_t>{0, 1, 2, 3, 0, 4, 5}));
  std::vector<std::int32_t> rehearsed;
  std::vector<bool> outweighed;
  for (const RankClass& like : found.classes) {
    rehearsed.push_back(like.rehearsed);
    outweighed.push_back(like.outweighed);
  }
  EXPECT_EQ(rehearsed, (std::vector<std::int32_t>{0, 0, 2, 3, 4, 2}));
  EXPECT_EQ(outweighed, (std::vector<bool>{true, true, false, false, false, true}));
}

// Groups of ranks that divide the batch, and a state that all ranks divide.
TEST(RankPlan, AClassIsOfOneSizeOfSlices) {
  const Case c{"h200", "causal", 251, 1, 0};
  const TrainingProblem problem = problem_of(c);
  for (const std::int64_t groups : {1, 2}) {
    for (const std::int64_t ring : {1, 3, 5, 8}) {
      for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
        Strategy strategy = strategy_of(problem, ring);
        strategy.data_ranks = groups;
        if (strategy.ranks() == 1) continue;
        strategy.sharding = sharding;
        const std::int64_t classes = check_classes(problem, strategy, device_of(c));
        if (sharding == Sharding::none) {
          EXPECT_LE(classes, ring);
        }
        strategy.loss_ranks = LossRanks::vocabulary;
        check_classes(problem, strategy, device_of(c));
      }
    }
  }
}

// The weights of a layer arrive beside the kernels, and its gradients are sent beside them; those of the
// embedding and of the loss are waited for.
TEST(RankPlan, MessagesOfALayerGoBesideKernels) {
  const Case c{"h200", "causal", 4096, 1, 0};
  const TrainingProblem problem = problem_of(c);
  Strategy strategy = strategy_of(problem, 1);
  strategy.data_ranks = 2;
  strategy.sharding = Sharding::full;
  CostModel costs(device_of(c), DType::bf16);
  costs.set_rank_link({.latency = Seconds(1e-6), .bytes_per_second = 1e12});
  const TrainingRehearsal rehearsal = rehearse(problem, strategy, device_of(c));
  const RankedAttention attention{};
  const RecordSeconds seconds(costs, problem.config, rehearsal, attention);
  double of_main = 0;
  std::vector<double> sent;
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (record.stream == StreamId::main) of_main += seconds.of(record);
    if (record.stream == StreamId::communication) sent.push_back(seconds.of(record));
  }
  // Weights of the embedding, of two layers, of what follows them, of the embedding as output weight, and of
  // the layers again; gradients of the second layer and of the first.
  ASSERT_EQ(sent.size(), 9u);
  const double played = seconds.of(Phase::micro_step, rehearsal.micro_step);
  const double waited = sent[0] + sent[3] + sent[4];
  const double beside = sent[2] + sent[6] + sent[7];
  EXPECT_GT(played, of_main + waited);
  EXPECT_LT(played, of_main + std::accumulate(sent.begin(), sent.end(), 0.0) - 0.99 * beside);
}

TEST(RankPlan, AThousandRanksAreAFewClasses) {
  TrainingProblem problem = problem_of({"h200", "causal", 10'485'760, 1, 0});
  problem.config = find_model("qwen3-4b");
  const CostModel costs(find_in_catalogue("h200").device, DType::bf16);
  for (const std::int64_t context : {10'485'760, 10'000'001}) {
    problem.sizes.context = context;
    for (const Sharding sharding : {Sharding::none, Sharding::full}) {
      const Strategy strategy{.layers = {.recompute = 36},
                              .ring_ranks = 1024,
                              .sharding = sharding,
                              .compute_dtype = DType::bf16};
      RankPlan plan(costs, find_in_catalogue("h200").device);
      const RankClasses& found = plan.classes(problem, strategy);
      EXPECT_LE(found.classes.size(), 24u) << context << " " << name(sharding);
      EXPECT_EQ(found.of_rank.size(), 1024u);
      Strategy words = strategy;
      words.loss_ranks = LossRanks::vocabulary;
      EXPECT_LE(plan.classes(problem, words).classes.size(), 48u) << context << " " << name(sharding);
    }
  }
}

}  // namespace
}  // namespace headroom
