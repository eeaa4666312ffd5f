// Memory over ranks is that of a short rehearsal, of one rank for each class that takes the same.
#include "plan/rank_plan.h"

#include <gtest/gtest.h>

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

// Every rank of every case: the short rehearsal takes the bytes of the whole one, and so do all ranks of its
// class.
TEST(RankPlan, AClassTakesTheBytesOfEachOfItsRanks) {
  const std::array cases = {Case{"cpu", "causal", 251, 1, 0},
                            Case{"h200", "causal", 512, 1, 0},
                            Case{"h200", "causal", 1009, 2, 0},
                            Case{"cpu", "window:21", 251, 1, 0},
                            Case{"h200", "causal+dilated:64/2", 200, 1, 0},
                            Case{"cpu", "causal", 333, 1, 17}};
  const CostModel costs(device_of(cases[0]), DType::f32);
  std::int64_t ranks_rehearsed = 0;
  std::int64_t classes = 0;
  for (const Case& c : cases) {
    const TrainingProblem problem = problem_of(c);
    const DeviceDescription device = device_of(c);
    for (std::int64_t ranks = 2; ranks <= 16; ++ranks) {
      Strategy strategy{.layers = {.keep_attention = 1, .recompute = 1},
                        .loss_chunk_tokens = 32,
                        .mlp_tile_tokens = 64,
                        .ring_ranks = ranks,
                        .head_group = ranks % c.group == 0 ? c.group : 1,
                        .compute_dtype = problem.compute_dtype};
      RankPlan plan(costs);
      const RankClasses& found = plan.classes(problem, strategy);
      std::vector<Layout> of_class;
      for (const RankClass& like : found.classes) {
        of_class.push_back(make_layout(rehearse_memory(problem, strategy, device, like.first).ledger));
      }
      classes += std::ssize(of_class);
      for (int rank = 0; rank < ranks; ++rank) {
        const Layout whole = rehearse_training(problem, strategy, device, rank);
        const Layout& like =
            of_class[static_cast<std::size_t>(found.of_rank[static_cast<std::size_t>(rank)])];
        for (const Space space : {Space::device, Space::host}) {
          EXPECT_EQ(like.reserved(space), whole.reserved(space))
              << c.device << " " << c.mask << ", rank " << rank << " of " << ranks;
          EXPECT_EQ(like.rehearsal.usage(space).peak_bytes, whole.rehearsal.usage(space).peak_bytes);
        }
        ++ranks_rehearsed;
      }
    }
  }
  EXPECT_EQ(ranks_rehearsed, 6 * 135);
  EXPECT_LT(classes, ranks_rehearsed * 3 / 4);  // in sequences this short, pieces of few tokens differ most
}

TEST(RankPlan, AThousandRanksAreAFewClasses) {
  TrainingProblem problem = problem_of({"h200", "causal", 10'485'760, 1, 0});
  problem.config = find_model("qwen3-4b");
  const CostModel costs(find_in_catalogue("h200").device, DType::bf16);
  for (const std::int64_t context : {10'485'760, 10'000'001}) {
    problem.sizes.context = context;
    const Strategy strategy{.layers = {.recompute = 36}, .ring_ranks = 1024, .compute_dtype = DType::bf16};
    RankPlan plan(costs);
    const RankClasses& found = plan.classes(problem, strategy);
    EXPECT_LE(found.classes.size(), 24u);
    EXPECT_EQ(found.of_rank.size(), 1024u);
  }
}

}  // namespace
}  // namespace headroom
