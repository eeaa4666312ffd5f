#include "headroom/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "headroom/cpu.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

using testing::HasSubstr;

class AttentionCases : public testing::TestWithParam<const char*> {};

TEST_P(AttentionCases, WithinThePlainComputation) {
  // A slice of the small ones, for sanitizers too; the long test and `headroom verify attention` run them
  // all.
  const std::vector<AttentionCase> cases = attention_cases();
  ASSERT_GE(cases.size(), 300U);
  int served = 0;
  const std::size_t step = GetParam() == std::string_view("tiled") ? 14 : 35;
  for (std::size_t i = 0; i < cases.size(); i += step) {
    const AttentionCase& c = cases[i];
    const std::int64_t work =
        c.problem.batch * c.problem.heads_q * c.problem.seq_q * c.problem.seq_k * c.problem.head_dim;
    if (work > 5'000'000 || !serves(c, GetParam())) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, GetParam(), 2).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GT(served, 8);
}

// What a slice might miss: each of these groups is small, and whole.
TEST_P(AttentionCases, PeaksPaddedDilationUnevenBlocksOddStridesAndChunks) {
  std::map<std::string, int> served = {
      {"peaked", 0}, {"padded dilation", 0}, {"uneven blocks", 0}, {"odd strides", 0}, {"chunks", 0}};
  int chunks = 0;
  constexpr int kChunkStep = 9;
  for (const AttentionCase& c : attention_cases()) {
    if (!served.contains(c.group) || !serves(c, GetParam())) continue;
    if (c.group == "chunks" && chunks++ % kChunkStep != 0) continue;
    ++served[c.group];
    EXPECT_LE(run_attention_case(c, GetParam(), 2).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GE(served.extract("chunks").mapped(), 100 / kChunkStep);
  EXPECT_THAT(served, testing::UnorderedElementsAre(
                          testing::Pair("peaked", 13), testing::Pair("padded dilation", 10),
                          testing::Pair("uneven blocks", 8), testing::Pair("odd strides", 8)));
}

// Rows of 16-bit types at odd addresses, which the shared list leaves out for the sake of Hopper's copies.
TEST_P(AttentionCases, OddStridesIn16Bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    AttentionCase c{
        .group = "odd strides", .name = std::string(name(dtype)), .problem = {}, .document_lengths = {}};
    c.problem = {.batch = 2,
                 .seq_q = 75,
                 .seq_k = 90,
                 .heads_q = 6,
                 .heads_kv = 3,
                 .head_dim = 24,
                 .dtype = dtype,
                 .mask = {.causal = true}};
    c.strided = c.odd = c.lse_gradient = true;
    EXPECT_LE(run_attention_case(c, GetParam(), 2).worst(), 1) << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionCases,
                         testing::Values("tiled", "naive", "naive-recompute"));

TEST(Attention, RunsInsideItsPlanAndPicksTheTiled) {
  AttentionProblem problem{
      .batch = 2, .seq_q = 200, .seq_k = 200, .heads_q = 4, .heads_kv = 2, .head_dim = 64};
  problem.mask.causal = true;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor q = context.allocate({.name = "q", .shape = {2, 200, 4, 64}});
      const Tensor k = context.allocate({.name = "k", .shape = {2, 200, 2, 64}});
      const Tensor o = context.allocate({.name = "o", .shape = {2, 200, 4, 64}});
      const Tensor lse = context.allocate({.name = "lse", .shape = {2, 4, 200}});
      context.run([&](const Stream&) {
        std::fill_n(q.data<float>(), q.view().elements(), 0.0F);
        std::fill_n(k.data<float>(), k.view().elements(), 2.0F);
      });
      attention_forward(context, problem,
                        {.query = q,
                         .key = k,
                         .value = k,
                         .sinks = {},
                         .document_starts = {},
                         .blocks = {},
                         .output = o,
                         .lse = lse,
                         .saved = {}});
      context.run([&](const Stream&) {
        EXPECT_FLOAT_EQ(o.data<float>()[o.view().offset(1, 150, 3, 5)], 2.0F);
        EXPECT_FLOAT_EQ(lse.data<float>()[lse.view().offset(1, 3, 150)], std::log(151.0F));
      });
    });
  };
  CpuBackend backend(2);
  Context rehearsal(backend.description());
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  program(context);
  // The largest block is the tiled workspace, not a matrix of scores.
  EXPECT_LT(backend.reserved_bytes(Space::device), 8 << 20);
}

// The message of the error, or nothing.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// What predicted times and `headroom profile` are made of.
TEST(Attention, SaysWhatItDoes) {
  AttentionProblem problem{
      .batch = 2, .seq_q = 5, .seq_k = 7, .heads_q = 4, .heads_kv = 2, .head_dim = 16, .dtype = DType::bf16};
  problem.mask.causal = true;
  const TensorView rows(nullptr, DType::bf16, {2, 5, 4, 16});
  const TensorView keys(nullptr, DType::bf16, {2, 7, 2, 16});
  const AttentionForward forward{.query = rows,
                                 .key = keys,
                                 .value = keys,
                                 .sinks = {},
                                 .document_starts = {},
                                 .blocks = {},
                                 .output = rows,
                                 .lse = TensorView(nullptr, DType::f32, {2, 4, 5}),
                                 .saved = {}};
  Context context(describe_cpu());
  context.phase(Phase::step, [&] {
    attention_forward(context, problem, forward);
    attention_backward(context, problem,
                       {.forward = forward,
                        .output_gradient = rows,
                        .lse_gradient = {},
                        .query_gradient = rows,
                        .key_gradient = keys,
                        .value_gradient = keys,
                        .sinks_gradient = {}});
  });
  const std::span<const WorkRecord> work = context.work(Phase::step);
  ASSERT_EQ(work.size(), 2U);
  const double pairs = 2 * 4 * (3 + 4 + 5 + 6 + 7);
  const double row_bytes = 2 * 5 * 4 * 16 * 2;
  const double key_bytes = 2 * 7 * 2 * 16 * 2;
  const double lse_bytes = 2 * 4 * 5 * 4;
  EXPECT_EQ(work[0].work.kernel, "attention");
  EXPECT_EQ(work[0].work.flops, 4 * 16 * pairs);
  EXPECT_EQ(work[0].work.bytes, 2 * row_bytes + 2 * key_bytes + lse_bytes);
  EXPECT_EQ(work[1].work.kernel, "attention backward");
  EXPECT_EQ(work[1].work.flops, 10 * 16 * pairs);
  EXPECT_EQ(work[1].work.bytes, 4 * row_bytes + 4 * key_bytes + lse_bytes);
}

TEST(Attention, RefusesViewsThatAreNotTheProblems) {
  Context context(describe_cpu());
  const AttentionProblem problem{
      .batch = 1, .seq_q = 8, .seq_k = 8, .heads_q = 2, .heads_kv = 2, .head_dim = 16};
  context.phase(Phase::step, [&] {
    const Tensor q = context.allocate({.name = "q", .shape = {1, 8, 2, 16}});
    const Tensor half = context.allocate({.name = "half", .dtype = DType::bf16, .shape = {1, 8, 2, 16}});
    const Tensor lse = context.allocate({.name = "lse", .shape = {1, 2, 8}});
    const Tensor wide = context.allocate({.name = "wide", .shape = {1, 8, 2}});
    const AttentionForward good{.query = q,
                                .key = q,
                                .value = q,
                                .sinks = {},
                                .document_starts = {},
                                .blocks = {},
                                .output = q,
                                .lse = lse,
                                .saved = {}};
    const auto refused = [&](auto change, std::string_view pinned = {}) {
      AttentionForward views = good;
      change(views);
      return error_of([&] { attention_forward(context, problem, views, pinned); });
    };
    EXPECT_EQ(refused([](auto&) {}), "");
    EXPECT_THAT(refused([](auto&) {}, "fastest"), HasSubstr("'fastest' is unknown"));
    EXPECT_THAT(refused([&](auto& v) { v.lse = q; }), HasSubstr("lse has shape [1, 8, 2, 16]"));
    EXPECT_THAT(refused([&](auto& v) { v.lse = wide.view().transpose(1, 2); }), HasSubstr("dense"));
    EXPECT_THAT(refused([&](auto& v) { v.output = half; }), HasSubstr("output holds bf16"));
    EXPECT_THAT(refused([&](auto& v) {
                  v.output = TensorView(q.view().raw(), DType::f32, {1, 8, 2, 16},
                                        std::vector<std::int64_t>{256, 0, 16, 1});
                }),
                HasSubstr("stride 0 in dimension 1"));
    EXPECT_THAT(refused([&](auto& v) {
                  v.key = TensorView(q.view().raw(), DType::f32, {1, 8, 2, 16},
                                     std::vector<std::int64_t>{256, 1, 8, 16});
                }),
                HasSubstr("stride 16 in head_dim"));
  });
  const DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up"};
  for (const AttentionImplementation& row : attention_implementations()) {
    EXPECT_FALSE(row.supports(problem, gpu)) << row.name;
    EXPECT_FALSE(row.supports(problem, gpu).reason().empty());
  }
}

TEST(Attention, RefusesMemoryThatIsTooSmall) {
  const AttentionProblem problem{.seq_q = 100, .seq_k = 100, .head_dim = 8};
  Context context(describe_cpu());
  context.phase(Phase::step, [&] {
    const Tensor q = context.allocate({.name = "q", .shape = {1, 100, 1, 8}});
    const Tensor lse = context.allocate({.name = "lse", .shape = {1, 1, 100}});
    const Tensor saved = context.allocate({.name = "saved", .dtype = DType::u8, .shape = {79'999}});
    const AttentionForward views{.query = q,
                                 .key = q,
                                 .value = q,
                                 .sinks = {},
                                 .document_starts = {},
                                 .blocks = {},
                                 .output = q,
                                 .lse = lse,
                                 .saved = saved};
    EXPECT_THAT(error_of([&] { attention_forward(context, problem, views, "naive"); }),
                HasSubstr("naive keeps 80000 bytes for backward, saved holds 79999"));
    EXPECT_EQ(error_of([&] { attention_forward(context, problem, views, "naive-recompute"); }), "");
  });
  // A workspace for one thread, a stream of four.
  DeviceDescription device = describe_cpu();
  const AttentionImplementation& tiled = attention_implementations().front();
  device.cores = 1;
  const std::int64_t bytes = tiled.workspace_bytes(problem, device, Pass::forward);
  device.cores = 4;
  const Stream stream{.device = &device, .pool = nullptr, .poll = {}, .native = nullptr};
  EXPECT_THAT(error_of([&] { tiled.forward(problem, {}, TensorView(nullptr, DType::u8, {bytes}), stream); }),
              HasSubstr("on 4 threads needs a workspace of"));
}

TEST(Attention, ASinkOfMinusInfinityIsNoSink) {
  AttentionProblem problem{.seq_q = 4, .seq_k = 2, .head_dim = 8, .sinks = true};
  problem.mask.causal = true;  // the first two rows see nothing
  for (const AttentionImplementation& row : attention_implementations()) {
    if (!row.supports(problem, describe_cpu())) continue;
    run_rehearsed([&](Context& context) {
      context.phase(Phase::step, [&] {
        const auto make = [&](const Shape& shape) {
          return context.allocate({.name = "tensor", .shape = shape});
        };
        const Tensor q = make({1, 4, 1, 8}), k = make({1, 2, 1, 8}), o = make({1, 4, 1, 8}),
                     dq = make({1, 4, 1, 8});
        const Tensor dk = make({1, 2, 1, 8}), dv = make({1, 2, 1, 8}), lse = make({1, 1, 4});
        const Tensor sink = make({1}), sink_gradient = make({1});
        const Tensor saved =
            context.allocate({.name = "saved", .dtype = DType::u8, .shape = {row.saved_bytes(problem)}});
        context.run([&](const Stream&) {
          for (const Tensor* tensor : {&q, &k})
            std::fill_n(tensor->data<float>(), tensor->view().elements(), 1.0F);
          sink.data<float>()[0] = -INFINITY;
        });
        const AttentionForward views{.query = q,
                                     .key = k,
                                     .value = k,
                                     .sinks = sink,
                                     .document_starts = {},
                                     .blocks = {},
                                     .output = o,
                                     .lse = lse,
                                     .saved = saved};
        attention_forward(context, problem, views, row.name);
        attention_backward(context, problem,
                           {.forward = views,
                            .output_gradient = q,
                            .lse_gradient = {},
                            .query_gradient = dq,
                            .key_gradient = dk,
                            .value_gradient = dv,
                            .sinks_gradient = sink_gradient},
                           row.name);
        context.run([&](const Stream&) {
          EXPECT_EQ(sink_gradient.data<float>()[0], 0) << row.name;
          EXPECT_EQ(lse.data<float>()[0], -INFINITY) << row.name;
          EXPECT_EQ(o.data<float>()[0], 0) << row.name;
          EXPECT_NEAR(o.data<float>()[31], 1, 1e-6) << row.name;
        });
      });
    });
  }
}

TEST(Attention, RefusesListsThatLeadAstray) {
  const auto refused = [](const std::vector<std::int32_t>& starts, const std::vector<std::int32_t>& blocks) {
    AttentionProblem problem{.batch = 1, .seq_q = 8, .seq_k = 8, .heads_q = 1, .heads_kv = 1, .head_dim = 8};
    problem.mask.max_documents = starts.empty() ? 0 : static_cast<std::int64_t>(starts.size()) - 1;
    if (!blocks.empty()) {
      problem.mask.block_rows = 8;
      problem.mask.block_columns = 4;
      problem.mask.max_blocks_per_row = static_cast<std::int64_t>(blocks.size());
    }
    const auto copy = [](const std::vector<std::int32_t>& from, const Tensor& to) {
      std::copy(from.begin(), from.end(), to.data<std::int32_t>());
    };
    return error_of([&] {
      run_rehearsed([&](Context& context) {
        context.phase(Phase::step, [&] {
          const Tensor q = context.allocate({.name = "q", .shape = {1, 8, 1, 8}});
          const Tensor lse = context.allocate({.name = "lse", .shape = {1, 1, 8}});
          const Tensor document_starts =
              context.allocate({.name = "starts",
                                .dtype = DType::i32,
                                .shape = {1, static_cast<std::int64_t>(starts.size())}});
          const Tensor lists =
              context.allocate({.name = "blocks",
                                .dtype = DType::i32,
                                .shape = {1, 1, 1, static_cast<std::int64_t>(blocks.size())}});
          context.run([&](const Stream&) {
            std::fill_n(q.data<float>(), 64, 1.0F);
            copy(starts, document_starts);
            copy(blocks, lists);
          });
          attention_forward(context, problem,
                            {.query = q,
                             .key = q,
                             .value = q,
                             .sinks = {},
                             .document_starts = document_starts,
                             .blocks = lists,
                             .output = q,
                             .lse = lse,
                             .saved = {}});
        });
      });
    });
  };
  EXPECT_EQ(refused({0, 3, 3, 8}, {}), "");
  EXPECT_THAT(refused({1, 8}, {}), HasSubstr("begin with 1"));
  EXPECT_THAT(refused({0, 5, 3, 8}, {}), HasSubstr("starts at 5 and ends before, at 3"));
  EXPECT_THAT(refused({0, 5, 9}, {}), HasSubstr("ends at 9"));
  EXPECT_EQ(refused({}, {0, 1}), "");
  EXPECT_EQ(refused({}, {1, -1}), "");
  EXPECT_THAT(refused({}, {1, 1}), HasSubstr("key tile 1 follows 1"));
  EXPECT_THAT(refused({}, {0, 2}), HasSubstr("key tile 2"));
}

// A problem over one buffer: the rows of all tensors lie side by side, `row_stride` apart.
class Buffer {
 public:
  Buffer(const AttentionProblem& problem, std::int64_t row_stride, void* data)
      : problem_(problem), row_stride_(row_stride), data_(data), lse_(rows() * problem.heads_q) {
    // dQ, dK and dV stand at 5, 6 and 7.
    const Random random(1);
    std::uint64_t count = 0;
    for (const int tensor : {0, 1, 2, 4}) {
      for (std::int64_t row = 0; row < rows(); ++row) {
        for (std::int64_t i = 0; i < width(); ++i) {
          view(tensor).data<float>()[row * row_stride_ + i] = static_cast<float>(random.normal(count++));
        }
      }
    }
  }

  void run(std::string_view implementation, int threads) {
    DeviceDescription device = describe_cpu();
    device.cores = threads;
    ThreadPool pool(threads);
    const Stream stream{.device = &device, .pool = &pool, .poll = {}, .native = nullptr};
    for (const AttentionImplementation& row : attention_implementations()) {
      if (row.name != implementation) continue;
      const auto workspace_of = [&](Pass pass) {
        workspace_.resize(static_cast<std::size_t>(row.workspace_bytes(problem_, device, pass)) / 64 + 1);
        return TensorView(workspace_.data(), DType::u8, {static_cast<std::int64_t>(workspace_.size()) * 64});
      };
      row.forward(problem_, forward(), workspace_of(Pass::forward), stream);
      row.backward(problem_,
                   {.forward = forward(),
                    .output_gradient = view(4),
                    .lse_gradient = {},
                    .query_gradient = view(5),
                    .key_gradient = view(6),
                    .value_gradient = view(7),
                    .sinks_gradient = {}},
                   workspace_of(Pass::backward), stream);
    }
  }

  // O, dQ, dK, dV.
  [[nodiscard]] std::vector<float> results() const {
    std::vector<float> values;
    for (const int tensor : {3, 5, 6, 7}) {
      for (std::int64_t row = 0; row < rows(); ++row) {
        for (std::int64_t i = 0; i < width(); ++i) {
          values.push_back(view(tensor).data<float>()[row * row_stride_ + i]);
        }
      }
    }
    return values;
  }
  [[nodiscard]] const std::vector<float>& lse() const { return lse_; }

  static std::int64_t width(const AttentionProblem& problem) { return problem.heads_q * problem.head_dim; }

 private:
  [[nodiscard]] std::int64_t rows() const { return problem_.batch * problem_.seq_q; }
  [[nodiscard]] std::int64_t width() const { return width(problem_); }
  [[nodiscard]] TensorView view(int tensor) const {
    const bool of_keys = tensor == 1 || tensor == 2 || tensor >= 6;
    const Shape shape{problem_.batch, problem_.seq_q, of_keys ? problem_.heads_kv : problem_.heads_q,
                      problem_.head_dim};
    const std::array strides = {problem_.seq_q * row_stride_, row_stride_, problem_.head_dim,
                                std::int64_t{1}};
    return {static_cast<float*>(data_) + tensor * width(), DType::f32, shape, strides};
  }
  AttentionForward forward() {
    return {.query = view(0),
            .key = view(1),
            .value = view(2),
            .sinks = {},
            .document_starts = {},
            .blocks = {},
            .output = view(3),
            .lse = TensorView(lse_.data(), DType::f32, {problem_.batch, problem_.heads_q, problem_.seq_q}),
            .saved = {}};
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  AttentionProblem problem_;
  std::int64_t row_stride_;
  void* data_;
  std::vector<float> lse_;
  std::vector<Line> workspace_;
};

TEST(Attention, SameBitsOnAnyNumberOfThreadsAndEveryTime) {
  AttentionProblem one_head{
      .batch = 1, .seq_q = 500, .seq_k = 500, .heads_q = 1, .heads_kv = 1, .head_dim = 8};
  one_head.mask.causal = true;
  AttentionProblem grouped{
      .batch = 2, .seq_q = 200, .seq_k = 200, .heads_q = 4, .heads_kv = 2, .head_dim = 8};
  AttentionProblem mixed = one_head;
  mixed.mask.dilations = {Dilation{200, 1}, Dilation{500, 2}};
  mixed.mask.dilation_count = 2;
  mixed.mask.mix_dilations = true;
  for (const AttentionProblem& problem : {one_head, grouped, mixed}) {
    const std::int64_t stride = 8 * Buffer::width(problem);
    std::vector<float> memory(static_cast<std::size_t>(problem.batch * problem.seq_q * stride));
    Buffer buffer(problem, stride, memory.data());
    buffer.run("tiled", 1);
    const std::vector<float> once = buffer.results();
    const std::vector<float> lse = buffer.lse();
    for (int i = 0; i < 100; ++i) {
      const int threads = 1 << i % 3;  // 1, 2, 4
      buffer.run("tiled", threads);
      ASSERT_EQ(buffer.results(), once) << "run " << i << " on " << threads << " threads";
      ASSERT_EQ(buffer.lse(), lse);
    }
  }
}

TEST(Attention, StridesPastTwoToThe31Elements) {
  // Five rows, 2^29 elements apart: the last begins past 2^31. Only the pages that are touched exist.
  const AttentionProblem problem{
      .batch = 1, .seq_q = 5, .seq_k = 5, .heads_q = 2, .heads_kv = 2, .head_dim = 16};
  constexpr std::int64_t kFar = (std::int64_t{1} << 29) + 64;
  const std::size_t bytes = 5 * kFar * sizeof(float);
  void* far =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(far, MAP_FAILED);
  Buffer strided(problem, kFar, far);
  const std::int64_t near_stride = 8 * Buffer::width(problem);
  std::vector<float> near(static_cast<std::size_t>(5 * near_stride));
  Buffer compact(problem, near_stride, near.data());
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.saved_bytes(problem) > 0 || !row.supports(problem, describe_cpu())) continue;
    strided.run(row.name, 2);
    compact.run(row.name, 2);
    EXPECT_EQ(strided.results(), compact.results()) << row.name;
    EXPECT_EQ(strided.lse(), compact.lse()) << row.name;
  }
  munmap(far, bytes);
}

TEST(Attention, MemoryIsLinearWhereTheBaselineIsQuadratic) {
  // Seed 004's largest row: batch 8, one head, d 64, seq 16384. Nothing is computed: bytes are known before.
  const AttentionProblem problem{
      .batch = 8, .seq_q = 16384, .seq_k = 16384, .heads_q = 1, .heads_kv = 1, .head_dim = 64};
  DeviceDescription device = describe_cpu();
  device.cores = 2;
  const auto added = [&](std::string_view name) {
    const AttentionImplementation& implementation = find_attention(name);
    return implementation.saved_bytes(problem) +
           std::max(implementation.workspace_bytes(problem, device, Pass::forward),
                    implementation.workspace_bytes(problem, device, Pass::backward));
  };
  EXPECT_EQ(find_attention("naive").saved_bytes(problem), 2LL * 8 * 16384 * 16384 * 4);  // S and P
  EXPECT_LT(added("tiled") * 100, added("naive"));
  EXPECT_EQ(added("naive"), added("naive-recompute"));  // recomputing saves less and peaks the same
}

}  // namespace
}  // namespace headroom
