// Hopper's attention kernels run thread by thread on the CPU, several blocks at a time: their copies and
// products are done at once, as late as possible, or at drawn moments, and threads are held up at random.
// What they compute must not depend on it.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "attention/backward_parts.h"
#include "attention/cuda/sm90/plan.h"
#include "attention/on_host.h"
#include "attention/small_cases.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

// With an L2 so small that waves of key tiles under a causal mask alternate.
const DeviceDescription kHopper{.kind = DeviceKind::cuda,
                                .name = "on host",
                                .cores = 3,
                                .l2_bytes = 128 << 10,
                                .compute_major = 9,
                                .compute_minor = 0};

class HopperOnHost : public testing::Test {
 protected:
  HopperOnHost() { resident_blocks = kHopper.cores; }
  ~HopperOnHost() override {
    resident_blocks = 1;
    Beside::current().choose(Beside::Moments::at_once);
  }
};

const AttentionImplementation& row_of(const AttentionProblem& problem) {
  return *choose(attention_implementations(), problem, kHopper).implementation;
}

// Every step-th case of the shared list; how many were served.
int run_cases(std::string_view name, std::size_t step) {
  const AttentionImplementation& row = find_attention(name);
  std::vector<AttentionCase> cases;
  for (AttentionCase& c : attention_cases()) {
    const bool slow = c.group == "large" || c.group == "many tiles";
    if (!slow && row.supports(c.problem, kHopper)) cases.push_back(std::move(c));
  }
  int served = 0;
  for (std::size_t i = 0; i < cases.size(); i += step) {
    Beside::current().choose(Beside::Moments::drawn, i);
    EXPECT_LE(run_attention_case(cases[i], row, 2, {.description = kHopper}).worst(), 1)
        << cases[i].group << ": " << cases[i].name;
    ++served;
  }
  return served;
}

TEST_F(HopperOnHost, WithinThePlainComputation) {
  EXPECT_GT(run_cases("sm90", 8), 40);
}
TEST_F(HopperOnHost, WithinThePlainComputationInF32) {
  EXPECT_GT(run_cases("bf16x3", 10), 10);
}

TEST_F(HopperOnHost, ChunksMakeTheWhole) {
  ChunkRunner runner = chunks_on_host(kHopper, row_of);
  runner.multiplies_in_16_bits = true;
  EXPECT_EQ(run_chunk_draws(runner, 1, 20), 20);
}

TEST_F(HopperOnHost, NoListMakesBackwardWaitForEver) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    expect_no_list_waits_for_ever(find_attention("sm90"), DType::bf16, head_dim, kHopper);
  }
  expect_no_list_waits_for_ever(find_attention("bf16x3"), DType::f32, 64, kHopper);
}

// In free order with 49 key tiles: up to 48, blocks take turns there too. In turns also as a part of a
// problem whose sections have three heads, so that waves which go opposite ways are under way together.
TEST_F(HopperOnHost, WavesThatAlternateWithinThePlainComputation) {
  const auto check = [](bool deterministic, std::int64_t seq, std::optional<KeyHeads> whole) {
    AttentionCase c{.group = "waves", .name = "alternating", .problem = {}, .document_lengths = {}};
    c.problem = {.seq_q = seq,
                 .seq_k = seq,
                 .head_dim = 64,
                 .dtype = DType::bf16,
                 .deterministic = deterministic,
                 .whole = whole,
                 .mask = {.causal = true}};
    const AttentionImplementation& row = row_of(c.problem);
    const sm90::Plan plan = sm90::Plan::of(c.problem);
    ASSERT_EQ(plan.turns, deterministic);
    const sm90::Waves waves = sm90::plan_waves(c.problem, kHopper, plan);
    ASSERT_EQ(waves.heads, whole ? 3 : 1);
    ASSERT_TRUE(waves.rises(whole ? 1 : 3));
    Beside::current().choose(Beside::Moments::drawn, 1);
    EXPECT_LE(run_attention_case(c, row, 2, {.description = kHopper}).worst(), 1);
  };
  check(false, 6'200, {});
  check(true, 1'500, {});
  check(true, 600, KeyHeads{.sequences = 1, .heads = 3});
}

TEST_F(HopperOnHost, PartsHaveTheBitsOfTheWholeWhereWavesAlternate) {
  AttentionCase c{.group = "waves", .name = "parts", .problem = {}, .document_lengths = {}};
  c.problem = {.seq_q = 600,
               .seq_k = 600,
               .heads_q = 3,
               .heads_kv = 3,
               .head_dim = 64,
               .dtype = DType::bf16,
               .mask = {.causal = true}};
  const AttentionImplementation& row = row_of(c.problem);
  ASSERT_EQ(sm90::plan_waves(c.problem, kHopper, sm90::Plan::of(c.problem)).heads, 3);
  AttentionProblem cut = c.problem;
  cut.most_backward_bytes = 0;
  const BackwardParts parts = BackwardParts::of(cut, row, kHopper);
  ASSERT_EQ(parts.count, 3);
  const Stream stream{.device = &kHopper, .pool = nullptr, .poll = {}, .native = nullptr};
  Beside::current().choose(Beside::Moments::drawn, 1);
  const auto check = [&](const AttentionBackward& views) {
    const Scratch workspace(std::max(row.workspace_bytes(c.problem, kHopper, Pass::forward),
                                     row.workspace_bytes(c.problem, kHopper, Pass::backward)));
    const auto gradients = [&] {
      std::vector<double> bits;
      for (const TensorView& view : {views.query_gradient, views.key_gradient, views.value_gradient}) {
        for (std::int64_t i = 0; i < view.elements(); ++i) bits.push_back(read_element(view, i));
      }
      return bits;
    };
    row.forward(c.problem, views.forward, workspace.view(), stream);
    for (std::int64_t part = 0; part < parts.count; ++part) {
      row.backward(parts.problem, parts.views(views, part), workspace.view(), stream);
    }
    const std::vector<double> of_parts = gradients();
    row.backward(c.problem, views, workspace.view(), stream);
    EXPECT_TRUE(gradients() == of_parts);
  };
  EXPECT_LE(run_attention_case(c, check, 2).worst(), 1);
}

class HopperMoments : public HopperOnHost, public testing::WithParamInterface<SmallCase> {};

// In deterministic order all bits are the same whatever happens when; in free order dQ is right.
TEST_P(HopperMoments, DoNotMatter) {
  const AttentionCase& c = GetParam().c;
  const AttentionImplementation& row = row_of(c.problem);
  ASSERT_EQ(row.name, c.problem.dtype == DType::f32 ? "bf16x3" : "sm90");
  const Stream stream{.device = &kHopper, .pool = nullptr, .poll = {}, .native = nullptr};
  std::vector<double> first;
  const auto run = [&](Beside::Moments moments, std::uint64_t seed) {
    Beside::current().choose(moments, seed);
    std::vector<double> bits;
    const auto errors = run_attention_case(
        c,
        [&](const AttentionBackward& views) {
          const Scratch workspace(std::max(row.workspace_bytes(c.problem, kHopper, Pass::forward),
                                           row.workspace_bytes(c.problem, kHopper, Pass::backward)));
          row.forward(c.problem, views.forward, workspace.view(), stream);
          row.backward(c.problem, views, workspace.view(), stream);
          for (const TensorView& view : {views.forward.output, views.forward.lse, views.key_gradient,
                                         views.value_gradient, views.query_gradient}) {
            if (!c.problem.deterministic && view.raw() == views.query_gradient.raw()) continue;
            for (std::int64_t i = 0; i < view.elements(); ++i) bits.push_back(read_element(view, i));
          }
        },
        2);
    EXPECT_LE(errors.worst(), 1);
    if (first.empty()) first = bits;
    EXPECT_TRUE(bits == first) << "seed " << seed;
  };
  run(Beside::Moments::at_once, 0);
  run(Beside::Moments::as_late_as_possible, 0);
  for (const std::uint64_t seed : {1, 2}) run(Beside::Moments::drawn, seed);
}

INSTANTIATE_TEST_SUITE_P(Cases, HopperMoments, testing::ValuesIn(small_cases()),
                         [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace headroom::cuda
