// The CUDA kernels' own sources, run thread by thread on the CPU, on the shared list of cases: what they
// compute is right before a GPU sees them.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/chunks.h"
#include "attention/cuda/intervals/portable-inl.h"
#include "attention/cuda/intervals/rows.h"
#include "attention/cuda/intervals/tf32-inl.h"
#include "attention/cuda/merge-inl.h"
#include "attention/cuda/shared-inl.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

constexpr IntervalKernels kPortable = make_interval_kernels<PortableTiles>();
constexpr IntervalKernels kTf32x3 = make_interval_kernels<Tf32x3Tiles>();
constexpr IntervalKernels kTf32 = make_interval_kernels<Tf32SingleTiles>();

// A row of the table with its launches on the host.
template <const IntervalKernels& Kernels>
AttentionImplementation on_host(std::string_view name) {
  AttentionImplementation row = find_attention(name);
  row.forward = [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
                   const Stream& stream) {
    forward_on_intervals(problem, views, workspace, kSharedLaunches, Kernels, stream);
  };
  row.backward = [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                    const Stream& stream) {
    backward_on_intervals(problem, views, workspace, kSharedLaunches, Kernels, stream);
  };
  return row;
}

// Every step-th case; how many were served.
int run_cases(const AttentionImplementation& row, int major, int minor, std::size_t step) {
  const CaseDevice gpu{
      .description = {
          .kind = DeviceKind::cuda, .name = "on host", .compute_major = major, .compute_minor = minor}};
  int served = 0;
  const std::vector<AttentionCase> cases = attention_cases();
  for (std::size_t i = 0; i < cases.size(); i += step) {
    const AttentionCase& c = cases[i];
    if (c.group == "large" || !row.supports(c.problem, gpu.description)) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
  return served;
}

// Compute capability 6 has the small tiles, 9 the large ones.
TEST(CudaOnHost, PortableWithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kPortable>("portable"), 6, 1, 22), 15);
  EXPECT_GT(run_cases(on_host<kPortable>("portable"), 9, 0, 14), 25);
}

// What a slice of the list might miss.
TEST(CudaOnHost, PaddedDilationUnevenBlocksAndOddStrides) {
  const AttentionImplementation row = on_host<kPortable>("portable");
  const CaseDevice gpu{
      .description = {.kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0}};
  for (const AttentionCase& c : attention_cases()) {
    if (c.group != "padded dilation" && c.group != "uneven blocks" && c.group != "odd strides") continue;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
}

TEST(CudaOnHost, Chunks) {
  const AttentionImplementation row = on_host<kPortable>("portable");
  const CaseDevice gpu{
      .description = {.kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0}};
  int seen = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (c.group != "chunks" || seen++ % 3 != 0) continue;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GE(seen, 100);
}

// Chunks merged by the GPU's own kernel, resumed, or open and closed by it.
TEST(CudaOnHost, ChunksMakeTheWhole) {
  const AttentionImplementation row = on_host<kPortable>("portable");
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  const Stream stream{.device = &gpu, .pool = nullptr, .poll = {}, .native = nullptr};
  const ChunkRunner runner{
      .supports = [&](const AttentionProblem& problem) { return row.supports(problem, gpu); },
      .saved_bytes = [&](const AttentionProblem& problem) { return row.saved_bytes(problem); },
      .forward =
          [&](const AttentionProblem& problem, const AttentionForward& views) {
            const Scratch workspace(row.workspace_bytes(problem, gpu, Pass::forward));
            row.forward(problem, views, workspace.view(), stream);
            EXPECT_TRUE(workspace.canaries_alive());
          },
      .backward =
          [&](const AttentionProblem& problem, const AttentionBackward& views) {
            const Scratch workspace(row.workspace_bytes(problem, gpu, Pass::backward));
            row.backward(problem, views, workspace.view(), stream);
            EXPECT_TRUE(workspace.canaries_alive());
          },
      .merge = [&](const AttentionPartial& into,
                   const AttentionPartial& from) { launch_merge(merge_call(into, from), stream); },
      .close = [&](const AttentionPartial& partial, const TensorView& row_sum,
                   const TensorView& output) { launch_close(close_call(partial, row_sum, output), stream); }};
  EXPECT_EQ(run_chunk_draws(runner, 1, 20), 20);
}

// More heads than a warp has lanes; the same bits as on the CPU.
TEST(CudaOnHost, ClosesRowsOfManyHeads) {
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  const Stream stream{.device = &gpu, .pool = nullptr, .poll = {}, .native = nullptr};
  const Shape rows{2, 3, 40, 136};
  const Shape statistics{2, 40, 3};
  Guarded sums(DType::f32, rows, false);
  const Guarded row_sum(DType::f64, statistics, false);
  sums.fill_normal(Random(1), 1);
  row_sum.for_each([&](std::int64_t offset) {
    row_sum.view().data<double>()[offset] =
        static_cast<double>(Random(2).below(static_cast<std::uint64_t>(offset), 5));
  });
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool strided : {false, true}) {
      const Guarded ours(dtype, rows, strided);
      const Guarded theirs(dtype, rows, strided);
      Guarded lse(DType::f32, statistics, false);
      Guarded cpu_lse(DType::f32, statistics, false);
      lse.fill_normal(Random(3), 1);
      cpu_lse.fill_normal(Random(3), 1);
      launch_close(close_call({sums.view(), lse.view()}, row_sum.view(), ours.view()), stream);
      in_context([&](Context& context) {
        close_attention(context, {sums.view(), cpu_lse.view()}, row_sum.view(), theirs.view());
      });
      EXPECT_EQ(ours.values(), theirs.values()) << name(dtype);
      EXPECT_EQ(lse.values(), cpu_lse.values()) << name(dtype);
      EXPECT_TRUE(ours.canaries_alive() && lse.canaries_alive());
    }
  }
}

// What blocks that divide a group of heads leave, [parts, batch, ...], is added up, and to what is there.
TEST(CudaOnHost, PartsAreAddedUp) {
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  const Stream stream{.device = &gpu, .pool = nullptr, .poll = {}, .native = nullptr};
  const Shape shape{2, 3, 2, 8};
  const auto count = static_cast<std::size_t>(shape.elements());
  std::vector<float> parts(3 * count);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<float>(i);
  AttentionCall call;
  call.batch = 2;
  call.head_dim = 8;
  for (const bool add : {false, true}) {
    std::vector<float> to(count, 0.5F);
    launch_narrow(call, heads_view(TensorView(to.data(), DType::f32, shape)),
                  heads_view(TensorView(parts.data(), DType::f32, shape)), 3, 2, 3, add, stream);
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = static_cast<float>(3 * i + 3 * count);
      ASSERT_EQ(to[i], add ? sum + 0.5F : sum) << i;
    }
  }
}

// Rounds towards zero where tensor cores are known to; 8.6 has smaller tiles.
TEST(CudaOnHost, Tf32x3WithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kTf32x3>("tf32x3"), 9, 0, 46), 5);
  EXPECT_GT(run_cases(on_host<kTf32x3>("tf32x3"), 8, 6, 74), 1);
}

// Against a plain computation on operands rounded to tf32.
TEST(CudaOnHost, Tf32WithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kTf32>("tf32"), 9, 0, 29), 4);
}

// Lists that nobody should make: numbers behind the end of one, numbers that do not rise, numbers past the
// last block. Blocks wait for each other's turns all the same, and none waits for one that never comes.
TEST(CudaOnHost, NoListMakesBackwardWaitForEver) {
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  const Stream stream{.device = &gpu, .pool = nullptr, .poll = {}, .native = nullptr};
  AttentionProblem problem{.seq_q = 130, .seq_k = 640, .head_dim = 16};
  problem.mask.block_rows = 65;
  problem.mask.block_columns = 64;
  problem.mask.max_blocks_per_row = 5;
  for (std::vector<std::int32_t> lists :
       {std::vector{3, -1, 5, 7, 9, 0, 2, 4, 6, 8}, std::vector{4, 1, 6, 3, 8, 9, 7, 5, 3, 1},
        std::vector{2, 2'000'000'000, 3, -7, 4, 9, 9, 9, 0, 0}}) {
    std::vector<float> inputs(640 * 16, 0.5F);
    std::vector<float> results(4 * 640 * 16);
    std::vector<float> lse(130);  // -inf where a row sees nothing
    std::vector<std::byte> workspace(
        static_cast<std::size_t>(IntervalWorkspace(problem, Pass::backward, nullptr).bytes));
    const auto rows = [&](std::vector<float>& from, int n, std::int64_t count) {
      return TensorView(from.data() + n * 640 * 16, DType::f32, {1, count, 1, 16});
    };
    const AttentionForward forward{.query = rows(inputs, 0, 130),
                                   .key = rows(inputs, 0, 640),
                                   .value = rows(inputs, 0, 640),
                                   .sinks = {},
                                   .document_starts = {},
                                   .blocks = TensorView(lists.data(), DType::i32, {1, 1, 2, 5}),
                                   .output = rows(results, 0, 130),
                                   .lse = TensorView(lse.data(), DType::f32, {1, 1, 130}),
                                   .saved = {}};
    const TensorView scratch(workspace.data(), DType::u8, {std::ssize(workspace)});
    forward_on_intervals(problem, forward, scratch, kSharedLaunches, kPortable, stream);
    backward_on_intervals(problem,
                          {.forward = forward,
                           .output_gradient = rows(inputs, 0, 130),
                           .lse_gradient = {},
                           .query_gradient = rows(results, 1, 130),
                           .key_gradient = rows(results, 2, 640),
                           .value_gradient = rows(results, 3, 640),
                           .sinks_gradient = {}},
                          scratch, kSharedLaunches, kPortable, stream);
    EXPECT_TRUE(std::ranges::all_of(results, [](float x) { return std::isfinite(x); }));
  }
}

}  // namespace
}  // namespace headroom::cuda
