// The CUDA kernels' own sources, run thread by thread on the CPU, on the shared list of cases: what they
// compute is right before a GPU sees them.
#include <gtest/gtest.h>

#include <vector>

#include "attention/on_host.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

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
  EXPECT_GT(run_cases(find_attention("portable"), 6, 1, 22), 15);
  EXPECT_GT(run_cases(find_attention("portable"), 9, 0, 14), 25);
}

// What a slice of the list might miss.
TEST(CudaOnHost, PaddedDilationUnevenBlocksAndOddStrides) {
  const AttentionImplementation& row = find_attention("portable");
  const CaseDevice gpu{
      .description = {.kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0}};
  for (const AttentionCase& c : attention_cases()) {
    if (c.group != "padded dilation" && c.group != "uneven blocks" && c.group != "odd strides") continue;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
}

TEST(CudaOnHost, Chunks) {
  const AttentionImplementation& row = find_attention("portable");
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
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  const auto portable = [](const AttentionProblem&) -> const AttentionImplementation& {
    return find_attention("portable");
  };
  EXPECT_EQ(run_chunk_draws(chunks_on_host(gpu, portable), 1, 20), 20);
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
      close_partial(close_call({sums.view(), lse.view()}, row_sum.view(), ours.view()), stream);
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
    shared_launches().narrow(call, heads_view(TensorView(to.data(), DType::f32, shape)),
                             heads_view(TensorView(parts.data(), DType::f32, shape)), 3, 2, 3, add, stream);
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = static_cast<float>(3 * i + 3 * count);
      ASSERT_EQ(to[i], add ? sum + 0.5F : sum) << i;
    }
  }
}

// Rounds towards zero where tensor cores are known to; 8.6 has smaller tiles.
TEST(CudaOnHost, Tf32x3WithinThePlainComputation) {
  EXPECT_GT(run_cases(find_attention("tf32x3"), 9, 0, 46), 5);
  EXPECT_GT(run_cases(find_attention("tf32x3"), 8, 6, 74), 1);
}

// Against a plain computation on operands rounded to tf32.
TEST(CudaOnHost, Tf32WithinThePlainComputation) {
  EXPECT_GT(run_cases(find_attention("tf32"), 9, 0, 29), 4);
}

TEST(CudaOnHost, NoListMakesBackwardWaitForEver) {
  const DeviceDescription gpu{
      .kind = DeviceKind::cuda, .name = "on host", .compute_major = 9, .compute_minor = 0};
  expect_no_list_waits_for_ever(find_attention("portable"), DType::f32, 16, gpu);
}

}  // namespace
}  // namespace headroom::cuda
