// Attention on a GPU: against the fp64 reference on a slice of the shared cases, the same bits every time,
// inside the memory that was planned.
#include "headroom/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <tuple>
#include <vector>

#include "attention/cuda/sm90/plan.h"
#include "attention_cases.h"
#include "cuda/cuda_backend.h"
#include "cuda/gpu_test.h"
#include "headroom/core/elements.h"
#include "headroom/core/error.h"
#include "headroom/core/random.h"
#include "headroom/cpu.h"
#include "headroom/memory.h"

namespace headroom {
namespace {

class CudaAttention : public GpuTest {};

TEST_F(CudaAttention, WithinThePlainComputation) {
  CudaBackend gpu(0);
  const CaseDevice device{.description = gpu.description(), .backend = &gpu};
  const std::vector<AttentionCase> cases = attention_cases();
  for (const AttentionImplementation& row : attention_implementations()) {
    int served = 0;
    for (std::size_t i = 0; i < cases.size(); i += 3) {
      if (!row.supports(cases[i].problem, gpu.description())) continue;
      ++served;
      EXPECT_LE(run_attention_case(cases[i], row, 8, device).worst(), 1)
          << row.name << ", " << cases[i].group << ": " << cases[i].name;
    }
    if (row.name == "portable") {
      EXPECT_GT(served, 140);
    }
    if (row.name == "bf16x3" && gpu.description().compute_major == 9) {
      EXPECT_GT(served, 25);
    }
  }
}

// What a slice might miss: each of these groups is small, and whole.
TEST_F(CudaAttention, PaddedDilationUnevenBlocksOddStridesAndChunks) {
  CudaBackend gpu(0);
  const CaseDevice device{.description = gpu.description(), .backend = &gpu};
  for (const AttentionCase& c : attention_cases()) {
    if (c.group != "padded dilation" && c.group != "uneven blocks" && c.group != "odd strides" &&
        c.group != "chunks") {
      continue;
    }
    for (const AttentionImplementation& row : attention_implementations()) {
      if (!row.supports(c.problem, gpu.description())) continue;
      EXPECT_LE(run_attention_case(c, row, 8, device).worst(), 1)
          << row.name << ", " << c.group << ": " << c.name;
    }
  }
}

// Rows that start at no multiple of 16 bytes: the portable kernels take them, Hopper's copies cannot. Whoever
// does not pick by alignment gets an error, not wrong values.
TEST_F(CudaAttention, OddStridesIn16BitsRunOnThePortableRow) {
  CudaBackend gpu(0);
  const CaseDevice device{.description = gpu.description(), .backend = &gpu};
  AttentionCase c{.group = "odd strides", .name = "bf16", .problem = {}, .document_lengths = {}};
  c.problem = {.batch = 2,
               .seq_q = 75,
               .seq_k = 90,
               .heads_q = 6,
               .heads_kv = 3,
               .head_dim = 64,
               .dtype = DType::bf16,
               .mask = {.causal = true}};
  c.strided = c.odd = true;
  const AttentionImplementation& sm90 = find_attention("sm90");
  if (sm90.supports(c.problem, gpu.description())) {
    EXPECT_THROW(static_cast<void>(run_attention_case(c, sm90, 8, device)), Error);
  }
  c.problem.row_alignment_bytes = 2;
  const auto chosen = choose(attention_implementations(), c.problem, gpu.description()).implementation;
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(chosen->name, "portable");
  EXPECT_LE(run_attention_case(c, *chosen, 8, device).worst(), 1);
}

// Forward and backward in a Context; what they leave behind, as bytes.
class Step {
 public:
  Step(const AttentionProblem& problem, std::string_view implementation)
      : problem_(problem), implementation_(implementation) {}

  std::vector<std::byte> operator()(Context& context) const {
    std::vector<std::byte> results;
    context.phase(Phase::step, [&] {
      const Shape rows{problem_.batch, problem_.seq_q, problem_.heads_q, problem_.head_dim};
      const Shape keys{problem_.batch, problem_.seq_k, problem_.heads_kv, problem_.head_dim};
      const auto make = [&](const Shape& shape) {
        return context.allocate({.name = "tensor", .dtype = problem_.dtype, .shape = shape});
      };
      const Tensor q = make(rows), k = make(keys), v = make(keys), o = make(rows), go = make(rows);
      const Tensor gq = make(rows), gk = make(keys), gv = make(keys);
      const Tensor lse =
          context.allocate({.name = "lse", .shape = {problem_.batch, problem_.heads_q, problem_.seq_q}});
      const Mask& mask = problem_.mask;
      const bool sparse = mask.block_rows > 0;
      const std::int64_t lists = sparse ? (problem_.seq_q + mask.block_rows - 1) / mask.block_rows : 1;
      const Tensor blocks = context.allocate(
          {.name = "blocks",
           .dtype = DType::i32,
           .shape = {problem_.batch, problem_.heads_kv, lists, sparse ? mask.max_blocks_per_row : 1}});
      // Every third key block, of each row another third.
      std::vector<std::int32_t> listed(static_cast<std::size_t>(blocks.view().elements()));
      const auto most = static_cast<std::size_t>(blocks.view().extent(3));
      for (std::size_t i = 0; i < listed.size(); ++i) {
        listed[i] = static_cast<std::int32_t>(i % most * 3 + i / most % 3);
      }
      Staging staging(context);
      staging.upload(blocks, std::as_bytes(std::span(listed)));
      std::uint64_t seed = 1;
      for (const Tensor* tensor : {&q, &k, &v, &go}) {
        std::vector<float> values(static_cast<std::size_t>(tensor->view().elements()));
        const Random random(seed++);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(random.uniform(i) * 2 - 1);
        }
        std::vector<std::uint16_t> rounded;
        for (const float value : values) rounded.push_back(BFloat16(value).bits);
        staging.upload(*tensor, problem_.dtype == DType::bf16 ? std::as_bytes(std::span(rounded))
                                                              : std::as_bytes(std::span(values)));
      }
      const AttentionForward forward{.query = q,
                                     .key = k,
                                     .value = v,
                                     .sinks = {},
                                     .document_starts = {},
                                     .blocks = sparse ? blocks.view() : TensorView{},
                                     .output = o,
                                     .lse = lse,
                                     .saved = {}};
      attention_forward(context, problem_, forward, implementation_);
      attention_backward(context, problem_,
                         {.forward = forward,
                          .output_gradient = go,
                          .lse_gradient = {},
                          .query_gradient = gq,
                          .key_gradient = gk,
                          .value_gradient = gv,
                          .sinks_gradient = {}},
                         implementation_);
      for (const Tensor* tensor : {&o, &lse, &gq, &gk, &gv}) {
        const std::size_t before = results.size();
        results.resize(before + static_cast<std::size_t>(tensor->view().bytes()));
        staging.download(std::span(results).subspan(before), *tensor);
      }
    });
    return results;
  }

  [[nodiscard]] Layout rehearse(const DeviceDescription& device) const {
    Context context(device);
    static_cast<void>((*this)(context));
    return make_layout(std::move(context).take_ledger());
  }

 private:
  AttentionProblem problem_;
  std::string_view implementation_;
};

TEST_F(CudaAttention, SameBitsEveryTimeInThePlannedMemory) {
  CudaBackend gpu(0);
  AttentionProblem grouped{
      .batch = 2, .seq_q = 1000, .seq_k = 1000, .heads_q = 8, .heads_kv = 2, .head_dim = 64};
  grouped.mask.causal = true;
  AttentionProblem mixed = grouped;
  mixed.mask.dilations = {Dilation{250, 1}, Dilation{1000, 3}};
  mixed.mask.dilation_count = 2;
  mixed.mask.mix_dilations = true;
  AttentionProblem wide{.seq_q = 777, .seq_k = 900, .heads_q = 2, .heads_kv = 2, .head_dim = 256};
  // 63 key blocks of 16, of which every row lists a third.
  AttentionProblem sparse = grouped;
  sparse.mask.block_rows = 48;
  sparse.mask.block_columns = 16;
  sparse.mask.max_blocks_per_row = 21;
  sparse.dtype = DType::bf16;
  AttentionProblem sparse_wide = sparse;
  sparse_wide.head_dim = 256;
  AttentionProblem sparse_f32 = sparse;
  sparse_f32.dtype = DType::f32;
  sparse_f32.head_dim = 128;
  for (const AttentionProblem& problem : {grouped, mixed, wide, sparse, sparse_wide, sparse_f32}) {
    for (const AttentionImplementation& row : attention_implementations()) {
      if (!row.supports(problem, gpu.description())) continue;
      const Step step(problem, row.name);
      const Layout layout = step.rehearse(gpu.description());
      Context context(gpu, layout);
      EXPECT_EQ(gpu.reserved_bytes(Space::device), layout.reserved(Space::device));
      const std::vector<std::byte> once = step(context);
      const std::int64_t free_bytes = cuda_memory(0).free_bytes;
      for (int i = 0; i < 50; ++i) ASSERT_TRUE(step(context) == once) << row.name << ", run " << i;
      EXPECT_EQ(cuda_memory(0).free_bytes, free_bytes) << row.name;
    }
  }
}

// Memory of the GPU, or pinned.
class Reserved {
 public:
  Reserved(Backend& backend, Space space, std::int64_t bytes)
      : backend_(backend), space_(space), bytes_(bytes), data_(backend.reserve(space, bytes)) {}
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() { backend_.release(space_, data_, bytes_); }

  [[nodiscard]] std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }

 private:
  Backend& backend_;
  Space space_;
  std::int64_t bytes_;
  void* data_;
};

// Tensors one after the other.
class Places {
 public:
  TensorView take(const Reserved& memory, DType dtype, const Shape& shape) {
    const std::int64_t offset = bytes;
    bytes += (dense_bytes(dtype, shape) + 255) / 256 * 256;
    return {memory.at(offset), dtype, shape};
  }
  std::int64_t bytes = 0;
};

// Into and from, each an output and its lse.
using Partials = std::array<TensorView, 4>;

void merge_on(Backend& backend, const Partials& views) {
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] { merge_attention(context, {views[0], views[1]}, {views[2], views[3]}); });
  };
  Context rehearsal(backend.description());
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  program(context);
  context.synchronize();
}

TEST_F(CudaAttention, MergesPartialResultsAsTheCpuDoes) {
  CudaBackend gpu(0);
  CpuBackend cpu(2);
  constexpr std::int64_t kPlenty = 1 << 20;
  const Reserved device(gpu, Space::device, kPlenty);
  const Reserved host(gpu, Space::host, 2 * kPlenty);
  const Shape rows{2, 70, 3, 40};
  const Shape statistics{2, 3, 70};
  const auto make = [&](const Reserved& memory) {
    Places places;
    Partials views;
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i] = places.take(memory, DType::f32, i % 2 == 0 ? rows : statistics);
    }
    return views;
  };
  const Partials on_cpu = make(host);
  const Partials on_gpu = make(device);
  std::uint64_t count = 0;
  for (const TensorView& view : on_cpu) {
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      view.data<float>()[i] = static_cast<float>(Random(1).normal(count++));
    }
  }
  // Nothing seen: of either, of the other, of both.
  for (std::int64_t i = 0; i < 60; ++i) {
    if (i % 3 != 1) on_cpu[1].data<float>()[i] = -INFINITY;
    if (i % 3 != 0) on_cpu[3].data<float>()[i] = -INFINITY;
  }
  gpu.copy(StreamId::main, device.at(0), host.at(0), kPlenty);
  gpu.synchronize();
  merge_on(gpu, on_gpu);
  merge_on(cpu, on_cpu);
  gpu.copy(StreamId::main, host.at(kPlenty), device.at(0), kPlenty);
  gpu.synchronize();
  for (const int side : {0, 1}) {
    const TensorView& expected = on_cpu[static_cast<std::size_t>(side)];
    const auto* merged = reinterpret_cast<const float*>(static_cast<std::byte*>(expected.raw()) + kPlenty);
    for (std::int64_t i = 0; i < expected.elements(); ++i) {
      const float truth = expected.data<float>()[i];
      if (std::isfinite(truth)) {
        EXPECT_NEAR(merged[i], truth, 2e-6) << side << " " << i;
      } else {
        EXPECT_EQ(merged[i], truth);
      }
    }
  }
}

// Key tiles whose blocks run at the same time all add to the same dQ: the order of their turns is what makes
// the bits. Results are overwritten before every run.
void expect_same_bits(Backend& gpu, const AttentionProblem& problem, std::string_view implementation,
                      int repeats) {
  const AttentionImplementation& row = find_attention(implementation);
  if (!row.supports(problem, gpu.description())) {
    ASSERT_NE(gpu.description().compute_major, 9) << implementation;  // Hopper has them all
    return;
  }
  const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
  const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
  constexpr std::int64_t kPlenty = 32 << 20;
  const Reserved inputs(gpu, Space::device, kPlenty);
  const Reserved results(gpu, Space::device, kPlenty);
  const Reserved seen(gpu, Space::host, kPlenty);
  Places of_inputs;
  const TensorView q = of_inputs.take(inputs, problem.dtype, rows);
  const TensorView k = of_inputs.take(inputs, problem.dtype, keys);
  const TensorView v = of_inputs.take(inputs, problem.dtype, keys);
  const TensorView go = of_inputs.take(inputs, problem.dtype, rows);
  Places of_results;
  const TensorView o = of_results.take(results, problem.dtype, rows);
  const TensorView gq = of_results.take(results, problem.dtype, rows);
  const TensorView gk = of_results.take(results, problem.dtype, keys);
  const TensorView gv = of_results.take(results, problem.dtype, keys);
  const TensorView lse =
      of_results.take(results, DType::f32, {problem.batch, problem.heads_q, problem.seq_q});
  ASSERT_LE(std::max(of_inputs.bytes, of_results.bytes), kPlenty);
  std::uint64_t seed = 1;
  for (const TensorView& tensor : {q, k, v, go}) {
    const TensorView host(seen.at(0), tensor.dtype(), tensor.shape());
    const Random random(seed++);
    for (std::int64_t i = 0; i < host.elements(); ++i) {
      write_element(host, i, random.normal(static_cast<std::uint64_t>(i)));
    }
    gpu.copy(StreamId::main, tensor.raw(), host.raw(), host.bytes());
    gpu.synchronize();
  }
  const std::int64_t forward_bytes = row.workspace_bytes(problem, gpu.description(), Pass::forward);
  const std::int64_t backward_bytes = row.workspace_bytes(problem, gpu.description(), Pass::backward);
  const Reserved workspace(gpu, Space::device, std::max({forward_bytes, backward_bytes, std::int64_t{1}}));
  const AttentionForward forward{.query = q,
                                 .key = k,
                                 .value = v,
                                 .sinks = {},
                                 .document_starts = {},
                                 .blocks = {},
                                 .output = o,
                                 .lse = lse,
                                 .saved = {}};
  const auto run = [&] {
    gpu.fill(StreamId::main, results.at(0), 0xFF, of_results.bytes);
    const Stream stream = gpu.stream(StreamId::main);
    row.forward(problem, forward, {workspace.at(0), DType::u8, {forward_bytes}}, stream);
    row.backward(problem,
                 {.forward = forward,
                  .output_gradient = go,
                  .lse_gradient = {},
                  .query_gradient = gq,
                  .key_gradient = gk,
                  .value_gradient = gv,
                  .sinks_gradient = {}},
                 {workspace.at(0), DType::u8, {backward_bytes}}, stream);
    gpu.copy(StreamId::main, seen.at(0), results.at(0), of_results.bytes);
    gpu.synchronize();
  };
  run();
  const std::vector<std::byte> once(seen.at(0), seen.at(of_results.bytes));
  for (int i = 1; i < repeats; ++i) {
    run();
    ASSERT_EQ(std::memcmp(seen.at(0), once.data(), once.size()), 0)
        << implementation << ", head_dim " << problem.head_dim << ", run " << i;
  }
}

constexpr int kRepeats = 1000;

// Waves alternate where the rows of a wave exceed the L2: here of 132 key tiles and four heads. The problem
// is a part of one whose sections have more heads, so that waves which go opposite ways are under way
// together.
TEST_F(CudaAttention, WavesThatAlternateWithinThePlainComputation) {
  CudaBackend gpu(0);
  const CaseDevice device{.description = gpu.description(), .backend = &gpu};
  AttentionCase c{.group = "waves", .name = "alternating", .problem = {}, .document_lengths = {}};
  c.problem = {.seq_q = 6'200,
               .seq_k = 6'200,
               .heads_q = 4,
               .heads_kv = 1,
               .head_dim = 128,
               .dtype = DType::bf16,
               .whole = KeyHeads{.sequences = 64, .heads = 16},
               .mask = {.causal = true}};
  const AttentionImplementation& row = find_attention("sm90");
  if (!row.supports(c.problem, gpu.description())) GTEST_SKIP() << "not a Hopper GPU";
  for (const bool deterministic : {false, true}) {
    c.problem.deterministic = deterministic;
    const auto waves = cuda::sm90::plan_waves(c.problem, gpu.description(), cuda::sm90::Plan::of(c.problem));
    ASSERT_TRUE(waves.rises(waves.tiles)) << "no waves";
    ASSERT_LT(waves.tiles, 49);
    EXPECT_LE(run_attention_case(c, row, 8, device).worst(), 1);
  }
}

AttentionProblem repeated(DType dtype, std::int64_t head_dim, std::int64_t batch, std::int64_t seq) {
  AttentionProblem problem{
      .batch = batch, .seq_q = seq, .seq_k = seq, .heads_q = 4, .heads_kv = 2, .head_dim = head_dim};
  problem.dtype = dtype;
  problem.mask.causal = true;
  return problem;
}

TEST_F(CudaAttention, SameBitsAThousandTimesIn16Bits) {
  CudaBackend gpu(0);
  for (const auto& [head_dim, batch, seq] :
       {std::tuple{64, 2, 1500}, {96, 1, 1500}, {128, 1, 2000}, {192, 1, 1000}, {256, 1, 1000}}) {
    expect_same_bits(gpu, repeated(DType::bf16, head_dim, batch, seq), "sm90", kRepeats);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, SameBitsAThousandTimesInF32) {
  CudaBackend gpu(0);
  for (const int head_dim : {64, 128}) {
    for (const std::string_view name : {"bf16x3", "tf32x3", "portable"}) {
      expect_same_bits(gpu, repeated(DType::f32, head_dim, 1, 1000), name, kRepeats);
      if (HasFatalFailure()) return;
    }
  }
}

// Lists that nobody should make: numbers behind the end of one, numbers that do not rise, numbers past the
// last block. Blocks wait for each other's turns all the same, and none waits for one that never comes.
TEST_F(CudaAttention, NoListMakesF32BackwardWaitForEver) {
  CudaBackend gpu(0);
  AttentionProblem problem{.seq_q = 130, .seq_k = 640, .head_dim = 64};
  problem.mask.block_rows = 65;
  problem.mask.block_columns = 64;
  problem.mask.max_blocks_per_row = 5;
  constexpr std::int64_t kPlenty = 4 << 20;
  const Reserved memory(gpu, Space::device, kPlenty);
  const Reserved scratch(gpu, Space::device, kPlenty);
  const Reserved host(gpu, Space::host, kPlenty);
  for (const std::string_view name : {"bf16x3", "tf32x3", "portable"}) {
    const AttentionImplementation& row = find_attention(name);
    if (!row.supports(problem, gpu.description())) continue;
    for (const std::vector<std::int32_t>& listed :
         {std::vector{3, -1, 5, 7, 9, 0, 2, 4, 6, 8}, std::vector{4, 1, 6, 3, 8, 9, 7, 5, 3, 1},
          std::vector{2, 2'000'000'000, 3, -7, 4, 9, 9, 9, 0, 0}}) {
      Places places;
      const Shape rows{1, problem.seq_q, 1, problem.head_dim};
      const Shape keys{1, problem.seq_k, 1, problem.head_dim};
      const TensorView q = places.take(memory, DType::f32, rows);
      const TensorView k = places.take(memory, DType::f32, keys);
      const TensorView blocks = places.take(memory, DType::i32, {1, 1, 2, 5});
      const std::int64_t results = places.bytes;
      const TensorView o = places.take(memory, DType::f32, rows);
      const TensorView gq = places.take(memory, DType::f32, rows);
      const TensorView gk = places.take(memory, DType::f32, keys);
      const TensorView gv = places.take(memory, DType::f32, keys);
      const std::int64_t end = places.bytes;
      const TensorView lse = places.take(memory, DType::f32, {1, 1, problem.seq_q});  // may be -inf
      ASSERT_LE(places.bytes, kPlenty);
      std::fill_n(reinterpret_cast<float*>(host.at(0)), kPlenty / 4, 0.5F);
      gpu.copy(StreamId::main, memory.at(0), host.at(0), kPlenty);
      gpu.copy(StreamId::main, blocks.raw(), listed.data(), 40);
      gpu.synchronize();
      const AttentionForward forward{.query = q,
                                     .key = k,
                                     .value = k,
                                     .sinks = {},
                                     .document_starts = {},
                                     .blocks = blocks,
                                     .output = o,
                                     .lse = lse,
                                     .saved = {}};
      const Stream stream = gpu.stream(StreamId::main);
      const TensorView workspace(scratch.at(0), DType::u8, {kPlenty});
      row.forward(problem, forward, workspace, stream);
      row.backward(problem,
                   {.forward = forward,
                    .output_gradient = q,
                    .lse_gradient = {},
                    .query_gradient = gq,
                    .key_gradient = gk,
                    .value_gradient = gv,
                    .sinks_gradient = {}},
                   workspace, stream);
      gpu.copy(StreamId::main, host.at(0), memory.at(0), kPlenty);
      gpu.synchronize();
      const std::span made(reinterpret_cast<const float*>(host.at(results)),
                           static_cast<std::size_t>(end - results) / 4);
      EXPECT_TRUE(std::ranges::all_of(made, [](float x) { return std::isfinite(x); })) << name;
    }
  }
}

// Five rows, 2^29 elements apart: the last begins past 2^31.
TEST_F(CudaAttention, StridesPastTwoToThe31Elements) {
  CudaBackend gpu(0);
  constexpr std::int64_t kFar = (std::int64_t{1} << 29) + 64;
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kHeadDim = 64;
  constexpr std::int64_t kWidth = 2 * kHeadDim;  // of a row
  const std::int64_t bytes = (kRows * kFar + 8 * kWidth) * 4;
  if (cuda_memory(0).free_bytes < bytes + (std::int64_t{1} << 30)) GTEST_SKIP() << "the GPU is too small";
  const AttentionProblem problem{
      .batch = 1, .seq_q = kRows, .seq_k = kRows, .heads_q = 2, .heads_kv = 2, .head_dim = kHeadDim};
  for (const AttentionImplementation& row : attention_implementations()) {
    if (!row.supports(problem, gpu.description())) continue;
    std::vector<std::vector<float>> seen;
    for (const std::int64_t stride : {kFar, 8 * kWidth}) {
      auto* memory = static_cast<float*>(gpu.reserve(Space::device, bytes));
      const std::int64_t space = row.workspace_bytes(problem, gpu.description(), Pass::backward);
      void* scratch = gpu.reserve(Space::device, space);
      void* statistics = gpu.reserve(Space::device, 2 * kRows * 4);
      const auto view = [&](int tensor) {
        const std::array<std::int64_t, 4> strides = {kRows * stride, stride, kHeadDim, 1};
        return TensorView(memory + tensor * kWidth, DType::f32, {1, kRows, 2, kHeadDim}, strides);
      };
      for (const int tensor : {0, 1, 2, 4}) {
        for (std::int64_t r = 0; r < kRows; ++r) {
          std::vector<float> values(kWidth);
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = static_cast<float>(Random(static_cast<std::uint64_t>(tensor))
                                               .normal(static_cast<std::uint64_t>(r) * kWidth + i));
          }
          gpu.copy(StreamId::main, memory + tensor * kWidth + r * stride, values.data(), 4 * kWidth);
          gpu.synchronize();
        }
      }
      const AttentionForward forward{.query = view(0),
                                     .key = view(1),
                                     .value = view(2),
                                     .sinks = {},
                                     .document_starts = {},
                                     .blocks = {},
                                     .output = view(3),
                                     .lse = TensorView(statistics, DType::f32, {1, 2, kRows}),
                                     .saved = {}};
      const Stream stream = gpu.stream(StreamId::main);
      const TensorView workspace(scratch, DType::u8, {space});
      row.forward(problem, forward, workspace, stream);
      row.backward(problem,
                   {.forward = forward,
                    .output_gradient = view(4),
                    .lse_gradient = {},
                    .query_gradient = view(5),
                    .key_gradient = view(6),
                    .value_gradient = view(7),
                    .sinks_gradient = {}},
                   workspace, stream);
      std::vector<float> results;
      for (const int tensor : {3, 5, 6, 7}) {
        for (std::int64_t r = 0; r < kRows; ++r) {
          results.resize(results.size() + kWidth);
          gpu.copy(StreamId::main, results.data() + results.size() - kWidth,
                   memory + tensor * kWidth + r * stride, 4 * kWidth);
          gpu.synchronize();
        }
      }
      seen.push_back(std::move(results));
      gpu.release(Space::device, memory, bytes);
      gpu.release(Space::device, scratch, space);
      gpu.release(Space::device, statistics, 2 * kRows * 4);
    }
    EXPECT_EQ(seen[0], seen[1]) << row.name;
  }
}

}  // namespace
}  // namespace headroom
