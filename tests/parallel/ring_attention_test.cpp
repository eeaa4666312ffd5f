// Attention over ranks that are threads, held to what attention on one rank is held to.
#include "headroom/parallel/ring_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attention/chunks.h"
#include "case_tools.h"
#include "headroom/cpu.h"
#include "headroom/memory/usage.h"
#include "ring_cases.h"
#include "ring_run.h"

namespace headroom {
namespace {

// Dense tensors of a whole sequence in host memory.
struct Whole {
  Whole(const AttentionProblem& problem, float spread = 1) {
    const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
    const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
    for (const Shape& shape : {rows, keys, keys, rows}) tensors.emplace_back(problem.dtype, shape, false);
    for (const Shape& shape : {rows, rows, keys, keys}) results.emplace_back(problem.dtype, shape, false);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].fill_normal(Random(i + 1), spread);
    lse = Guarded(problem.dtype_of_sums(), {problem.batch, problem.heads_q, problem.seq_q}, false);
  }
  [[nodiscard]] AttentionBackward views() const {
    AttentionBackward all;
    all.forward.query = tensors[0].view();
    all.forward.key = tensors[1].view();
    all.forward.value = tensors[2].view();
    all.output_gradient = tensors[3].view();
    all.forward.output = results[0].view();
    all.forward.lse = lse.view();
    all.query_gradient = results[1].view();
    all.key_gradient = results[2].view();
    all.value_gradient = results[3].view();
    return all;
  }

  std::vector<Guarded> tensors, results;
  Guarded lse;
};

AttentionProblem sized(std::int64_t seq, std::int64_t heads_q, std::int64_t heads_kv, DType dtype,
                       bool causal) {
  AttentionProblem problem{
      .seq_q = seq, .seq_k = seq, .heads_q = heads_q, .heads_kv = heads_kv, .head_dim = 64, .dtype = dtype};
  problem.mask.causal = causal;
  return problem;
}

ParallelSchedule schedule_of(const AttentionProblem& problem, int ranks, PartitionKind kind,
                             AttentionWay way = AttentionWay::ring, int group = 0) {
  return {way, problem, {}, make_partition(kind, ranks, problem, {}), group};
}

void run_ranks(const ParallelSchedule& schedule, const AttentionBackward& whole, std::string_view pinned = {},
               const LinkModel& link = {}) {
  on_thread_ranks(schedule.ranks(), link, [&](Communicator& communicator) {
    CpuBackend backend(1);
    run_ring_rank(schedule, whole, communicator, backend, pinned);
  });
}

TEST(RingAttention, EqualsOneRankOnTheListOfCases) {
  const std::vector<RingCase> cases = ring_cases();
  EXPECT_GE(cases.size(), 150U);
  for (const RingCase& c : cases) {
    SCOPED_TRACE(c.attention.group + ": " + c.name());
    EXPECT_LE(run_ring_case(c).worst(), 1);
  }
}

TEST(RingAttention, SameBitsEveryTime) {
  const AttentionProblem problem = sized(97, 4, 2, DType::bf16, true);
  for (const ParallelSchedule& schedule :
       {schedule_of(problem, 5, PartitionKind::zigzag),
        schedule_of(problem, 6, PartitionKind::zigzag, AttentionWay::product, 2)}) {
    const Whole first(problem);
    const Whole second(problem);
    run_ranks(schedule, first.views());
    run_ranks(schedule, second.views());
    for (std::size_t i = 0; i < first.results.size(); ++i) {
      EXPECT_EQ(first.results[i].values(), second.results[i].values()) << i;
    }
  }
}

// The largest error of a case is that of one unlucky element and differs between orders of the same sum, so
// the mean over drawn cases is held to the bar.
TEST(RingAttention, ErrorInF32IsThatOfOneRank) {
  constexpr int kCases = 96;  // with 24, largest errors of random cases still scatter by a tenth
  for (const int ranks : {2, 16}) {
    double one[AttentionErrors::kResults] = {};
    double many[AttentionErrors::kResults] = {};
    for (int i = 0; i < kCases; ++i) {
      Draw draw(static_cast<std::uint64_t>(i));
      RingCase c;
      c.attention.problem = sized(100 + draw.below(200), 2, 1, DType::f32, i % 2 == 0);
      c.attention.problem.head_dim = 8 * (1 + draw.below(4));
      c.partition = PartitionKind::zigzag;
      const AttentionErrors of_one = run_ring_case(c);
      c.ranks = ranks;
      const AttentionErrors of_many = run_ring_case(c);
      for (int result = 0; result < AttentionErrors::kResults; ++result) {
        one[result] += of_one.ours[result];
        many[result] += of_many.ours[result];
      }
    }
    for (int result = 0; result < AttentionErrors::kResults; ++result) {
      EXPECT_LE(many[result], 1.2 * one[result]) << "result " << result << " on " << ranks << " ranks";
    }
  }
}

// In the precision that tensors are stored in, sixteen ranks are as far from the truth as one.
TEST(RingAttention, ErrorDoesNotGrowWithRanks) {
  for (const bool causal : {false, true}) {
    RingCase c;
    c.attention.problem = sized(259, 2, 1, DType::bf16, causal);
    c.attention.problem.head_dim = 16;
    c.partition = PartitionKind::zigzag;
    const AttentionErrors one = run_ring_case(c);
    c.ranks = 16;
    const AttentionErrors sixteen = run_ring_case(c);
    for (const int result : {0, 2, 3, 4}) EXPECT_LE(sixteen.ours[result], 1.2 * one.ours[result]) << result;
  }
}

// What ranks compute as gradients is what a change of each input does to sum(O * dO), in fp64: the reference
// row runs every chunk, and sums travel in f64.
void check_finite_differences(const ParallelSchedule& schedule) {
  const Whole whole(schedule.problem());
  const AttentionBackward views = whole.views();
  run_ranks(schedule, views, "reference");
  const std::vector<std::vector<double>> gradients = {whole.results[1].values(), whole.results[2].values(),
                                                      whole.results[3].values()};
  const auto loss = [&] {
    run_ranks(schedule, views, "reference");
    const std::vector<double> output = whole.results[0].values();
    const std::vector<double> weight = whole.tensors[3].values();
    double sum = 0;
    for (std::size_t i = 0; i < output.size(); ++i) sum += output[i] * weight[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (std::size_t input = 0; input < 3; ++input) {
    double* elements = whole.tensors[input].view().data<double>();
    for (std::size_t i = 0; i < gradients[input].size(); i += 5) {
      const double before = elements[i];
      elements[i] = before + kStep;
      const double above = loss();
      elements[i] = before - kStep;
      const double below = loss();
      elements[i] = before;
      EXPECT_NEAR(gradients[input][i], (above - below) / (2 * kStep), 1e-8)
          << "input " << input << " at " << i;
    }
  }
}

TEST(RingAttention, FiniteDifferencesThroughThreeRanks) {
  AttentionProblem problem = sized(11, 2, 1, DType::f64, true);
  problem.head_dim = 8;
  check_finite_differences(schedule_of(problem, 3, PartitionKind::zigzag));
}

TEST(RingAttention, FiniteDifferencesThroughTwoGroupsOfTwoRanks) {
  AttentionProblem problem = sized(9, 4, 2, DType::f64, true);
  problem.head_dim = 8;
  check_finite_differences(schedule_of(problem, 4, PartitionKind::zigzag, AttentionWay::product, 2));
}

// Every message that the transport counted is in the schedule, and the other way round.
TEST(RingAttention, SendsWhatTheScheduleCounts) {
  for (const RingCase& c : ring_cases()) {
    const bool divides_heads = c.way == AttentionWay::heads || c.way == AttentionWay::product;
    if (c.ranks != (divides_heads ? 4 : 3)) continue;
    if (c.attention.lse_gradient && c.way != AttentionWay::ring) continue;  // it is not counted
    SCOPED_TRACE(c.attention.group + ": " + c.name());
    const AttentionErrors errors = run_attention_case(
        c.attention,
        [&](const AttentionBackward& whole) {
          const ParallelSchedule schedule = c.schedule(whole.forward);
          on_thread_ranks(c.ranks, {}, [&](Communicator& communicator) {
            CpuBackend backend(1);
            run_ring_rank(schedule, whole, communicator, backend);
            const int rank = communicator.ranks().rank;
            EXPECT_EQ(communicator.traffic().sent_bytes,
                      schedule.sent_bytes(rank, Pass::forward) + schedule.sent_bytes(rank, Pass::backward));
          });
        },
        1);
    EXPECT_LE(errors.worst(), 1);
  }
}

// Tensors of a whole sequence without memory.
AttentionBackward shapes_of(const AttentionProblem& p) {
  AttentionBackward shapes;
  const Shape rows{p.batch, p.seq_q, p.heads_q, p.head_dim};
  const Shape keys{p.batch, p.seq_k, p.heads_kv, p.head_dim};
  shapes.forward.query = shapes.output_gradient = TensorView(nullptr, p.dtype, rows);
  shapes.forward.key = shapes.forward.value = TensorView(nullptr, p.dtype, keys);
  return shapes;
}

DeviceDescription one_core() {
  DeviceDescription device = describe_cpu();
  device.cores = 1;
  return device;
}

Layout rehearsed(const ParallelSchedule& schedule, int rank, const DeviceDescription& device = one_core()) {
  return rehearse_ring(schedule, shapes_of(schedule.problem()), device, {rank, schedule.ranks()});
}

// What bytes a phase holds at most: those of the run, and of its own.
std::int64_t peak_bytes(const Layout& layout, Phase phase) {
  std::int64_t most = 0;
  for (const StageUsage& usage : usage_by_stage(layout.rehearsal, Space::device)) {
    if (usage.phase == phase) most = std::max(most, usage.peak_bytes);
  }
  return most;
}

// Forward: at most 1.1 x (single / ranks), two chunks of K and V and one f32 chunk of O. Backward: also one
// f32 chunk of dQ and three of dK and dV.
TEST(RingAttention, MemoryOfARankIsAShare) {
  struct Sizes {
    DType dtype;
    std::int64_t heads_q, heads_kv;
    PartitionKind kind;
  };
  constexpr Sizes kSizes[] = {
      {DType::f32, 8, 8, PartitionKind::contiguous}, {DType::f32, 8, 2, PartitionKind::zigzag},
      {DType::bf16, 8, 8, PartitionKind::zigzag},    {DType::bf16, 8, 2, PartitionKind::contiguous},
      {DType::bf16, 8, 1, PartitionKind::zigzag},    {DType::f16, 16, 4, PartitionKind::zigzag}};
  const auto expect_share = [](const Sizes& sizes, const DeviceDescription& device) {
    const auto& [dtype, heads_q, heads_kv, kind] = sizes;
    const AttentionProblem problem = sized(8192, heads_q, heads_kv, dtype, true);
    const Layout single = rehearsed(schedule_of(problem, 1, kind), 0, device);
    for (const int ranks : {2, 4, 8, 16}) {
      const ParallelSchedule schedule = schedule_of(problem, ranks, kind);
      const auto tokens = static_cast<double>(schedule.partition().most_tokens());
      const double keys = tokens * static_cast<double>(2 * heads_kv * problem.head_dim);
      const double queries = tokens * static_cast<double>(heads_q * problem.head_dim);
      const auto allowed = [&](Phase phase) {
        const double forward = 1.1 * static_cast<double>(peak_bytes(single, phase)) / ranks +
                               2 * keys * static_cast<double>(size_bytes(dtype)) + 4 * queries;
        return phase == Phase::forward ? forward : forward + 4 * queries + 3 * 4 * keys;
      };
      for (int rank = 0; rank < ranks; ++rank) {
        const Layout layout = rehearsed(schedule, rank, device);
        for (const Phase phase : {Phase::forward, Phase::backward}) {
          EXPECT_LE(static_cast<double>(peak_bytes(layout, phase)), allowed(phase))
              << name(phase) << " " << name(dtype) << " heads " << heads_q << "/" << heads_kv << " "
              << name(kind) << " rank " << rank << " of " << ranks << " on " << device.name;
        }
      }
    }
  };
  const DeviceDescription hopper{
      .kind = DeviceKind::cuda, .name = "a Hopper GPU", .cores = 132, .compute_major = 9};
  for (const Sizes& sizes : kSizes) {
    expect_share(sizes, one_core());
    expect_share(sizes, hopper);
  }
}

// 8,192 tokens on two ranks, 8 heads of 64 in f16, one dilation rate per group of heads. The first ring that
// was built so gathered everything on both, and needed 3.2 times what one GPU did.
TEST(RingAttention, NeedsLessThanOneRankWhereGatheringNeedsMore) {
  AttentionProblem problem = sized(8192, 8, 8, DType::f16, false);
  problem.mask.dilations[0] = {2048, 1};
  problem.mask.dilations[1] = {4096, 2};
  problem.mask.dilation_count = 2;
  const auto layout = [&](int ranks, AttentionWay way) {
    return rehearsed(schedule_of(problem, ranks, PartitionKind::contiguous, way), 0);
  };
  const Layout single = layout(1, AttentionWay::ring);
  const Layout ring = layout(2, AttentionWay::ring);
  const Layout gather = layout(2, AttentionWay::gather);
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    EXPECT_LT(peak_bytes(ring, phase), peak_bytes(single, phase)) << name(phase);
    EXPECT_GT(peak_bytes(gather, phase), peak_bytes(single, phase)) << name(phase);
  }
  EXPECT_LT(ring.reserved(Space::device), single.reserved(Space::device));
  EXPECT_GT(gather.reserved(Space::device), single.reserved(Space::device));
}

// Four ranks, everybody reads everything: six slots. While a slot is computed, K and V of the next two are
// under way, in backward of the next three.
TEST(RingAttention, KeysOfLaterSlotsAreUnderWay) {
  const ParallelSchedule schedule =
      schedule_of(sized(256, 4, 2, DType::bf16, false), 4, PartitionKind::contiguous);
  const AttentionBackward shapes = shapes_of(schedule.problem());
  Context context(describe_cpu(), {1, 4});
  RingRun run(context, schedule, shapes);
  run.forward();
  run.backward();
  const auto own = std::ssize(schedule.ring().local(1));
  const auto check = [&](Phase phase, std::string_view kernel, std::int64_t ahead) {
    const Transfer& transfer = *schedule.ring().received(1, 0);
    const std::int64_t bytes = 2 * transfer.row_count * 64 * size_bytes(DType::bf16);  // gradients have more
    std::int64_t computed = 0;
    std::int64_t received = 0;
    for (const WorkRecord& record : context.work(phase)) {
      if (record.work.kernel == "exchange" && record.work.received_bytes == bytes) ++received;
      if (record.work.kernel != kernel) continue;
      const std::int64_t slot = computed++ - own;  // below 0: own keys
      EXPECT_EQ(received, std::min<std::int64_t>(std::max<std::int64_t>(slot, -1) + 1 + ahead, 6))
          << kernel << " in slot " << slot;
    }
    EXPECT_EQ(computed, own + 6) << kernel;
  };
  check(Phase::forward, "attention", 2);
  check(Phase::backward, "attention backward", 3);
}

// Messages that arrive late change no bit: what is waited for, and what is added when, is the schedule's.
TEST(RingAttention, SameBitsOverASlowLink) {
  for (const PartitionKind kind : {PartitionKind::zigzag, PartitionKind::contiguous}) {
    const AttentionProblem problem = sized(131, 4, 2, DType::bf16, true);
    const ParallelSchedule schedule = schedule_of(problem, 5, kind);
    const Whole fast(problem);
    const Whole slow(problem);
    run_ranks(schedule, fast.views());
    run_ranks(schedule, slow.views(), {}, {.latency = Seconds(1e-3), .bytes_per_second = 1e7});
    for (std::size_t i = 0; i < fast.results.size(); ++i) {
      EXPECT_EQ(fast.results[i].values(), slow.results[i].values()) << i;
    }
  }
}

// Buffers are taken before the loops: the allocations of a pass do not depend on the number of tokens.
TEST(RingAttention, EventsDoNotDependOnTokens) {
  const auto events = [](std::int64_t seq) {
    const ParallelSchedule schedule =
        schedule_of(sized(seq, 4, 2, DType::bf16, true), 4, PartitionKind::zigzag);
    const AttentionBackward shapes = shapes_of(schedule.problem());
    Context context(describe_cpu(), {1, 4});
    RingRun run(context, schedule, shapes);
    run.forward();
    run.backward();
    std::map<Phase, std::size_t> counts;
    for (const Ledger::Trace& trace : context.ledger().phases()) {
      if (trace.phase != Phase::load) counts[trace.phase] = trace.events.size();
    }
    return counts;
  };
  EXPECT_EQ(events(256), events(8192));
}

TEST(RingAttention, RefusesAnotherNumberOfRanks) {
  const AttentionProblem problem = sized(32, 4, 2, DType::f32, true);
  const auto rehearse = [&](const ParallelSchedule& schedule, int ranks) {
    return rehearse_ring(schedule, Whole(problem).views(), describe_cpu(), {0, ranks});
  };
  EXPECT_THROW(static_cast<void>(rehearse(schedule_of(problem, 3, PartitionKind::zigzag), 2)), Error);
  EXPECT_THROW(static_cast<void>(rehearse(schedule_of(problem, 3, PartitionKind::zigzag), 4)), Error);
  static_cast<void>(rehearse(schedule_of(problem, 3, PartitionKind::zigzag), 6));  // two groups
  const ParallelSchedule product = schedule_of(problem, 4, PartitionKind::zigzag, AttentionWay::product, 2);
  EXPECT_THROW(static_cast<void>(rehearse(product, 2)), Error);
}

// A machine without a GPU plans a ring for one: of two ranks each has less than one alone.
TEST(RingAttention, IsPlannedForAGpu) {
  const AttentionProblem problem = sized(2048, 8, 2, DType::bf16, true);
  const Whole whole(problem);
  DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up"};
  gpu.compute_major = 9;
  const auto bytes = [&](int ranks) {
    const ParallelSchedule schedule = schedule_of(problem, ranks, PartitionKind::zigzag);
    return rehearse_ring(schedule, whole.views(), gpu, {0, ranks}).reserved(Space::device);
  };
  EXPECT_LT(bytes(2), bytes(1));
  // Chunks run on the row that whole sequences run on.
  const ParallelSchedule schedule = schedule_of(problem, 2, PartitionKind::zigzag);
  const AttentionBackward shapes = whole.views();
  Context context(gpu, {0, 2});
  RingRun run(context, schedule, shapes);
  run.forward();
  run.backward();
  int chunks = 0;
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const WorkRecord& record : context.work(phase)) {
      if (record.work.kernel != "attention" && record.work.kernel != "attention backward") continue;
      EXPECT_EQ(record.work.row, "sm90") << record.work.kernel;
      ++chunks;
    }
  }
  EXPECT_GT(chunks, 4);
}

}  // namespace
}  // namespace headroom
