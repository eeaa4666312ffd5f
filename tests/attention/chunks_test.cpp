// Attention on chunks through the public header, on the CPU.
#include "attention/chunks.h"

#include <gmock/gmock.h>

#include <cmath>

namespace headroom {
namespace {

using testing::HasSubstr;

TEST(AttentionChunks, MakeTheWhole) {
  // A few, for sanitizers too; the long test draws many.
  EXPECT_EQ(run_chunk_draws(on_cpu("tiled"), 1, 10), 10);
  EXPECT_EQ(run_chunk_draws(on_cpu("reference"), 100, 3), 3);
  // Plain computations round probabilities to the inputs' dtype.
  EXPECT_GT(run_chunk_draws(on_cpu("naive"), 1, 12, true), 2);
  EXPECT_GT(run_chunk_draws(on_cpu("naive-recompute"), 1, 12, true), 2);
}

// The rows of a partial result with one column, and of the other.
struct Rows {
  std::vector<float> output;
  std::vector<float> lse;
  AttentionPartial partial() {
    const auto rows = std::ssize(lse);
    return {TensorView(output.data(), DType::f32, {1, rows, 1, 1}),
            TensorView(lse.data(), DType::f32, {1, 1, rows})};
  }
};

TEST(MergeAttention, IsSafeAtTheEndsOfItsRange) {
  constexpr float kNothing = -INFINITY;
  constexpr float kNan = NAN;
  // Nothing on the left, on the right, on both sides; equal; far apart both ways; large and small.
  Rows into{{kNan, 2, 5, 1, 1, 7, 1, 1}, {kNothing, 3, kNothing, 0.5F, 1000, -1000, 3e38F, -3e38F}};
  Rows from{{4, kNan, kNan, 3, 9, 2, 3, 3}, {-2, kNothing, kNothing, 0.5F, -1000, 1000, 3e38F, -3e38F}};
  in_context([&](Context& context) { merge_attention(context, into.partial(), from.partial()); });
  const std::vector<float> output = {4, 2, 0, 2, 1, 2, 2, 2};
  EXPECT_EQ(into.output, output);
  EXPECT_EQ(into.lse[0], -2);
  EXPECT_EQ(into.lse[1], 3);
  EXPECT_EQ(into.lse[2], kNothing);
  EXPECT_FLOAT_EQ(into.lse[3], 0.5F + std::log(2.0F));
  EXPECT_EQ(into.lse[4], 1000);
  EXPECT_EQ(into.lse[5], 1000);
  EXPECT_FLOAT_EQ(into.lse[6], 3e38F);
  EXPECT_FLOAT_EQ(into.lse[7], -3e38F);
}

TEST(MergeAttention, TakesAnyStridesAndRefusesOtherShapes) {
  const Shape rows{2, 3, 2, 8};
  const Shape statistics{2, 2, 3};
  const Guarded into(DType::f32, rows, true);
  const Guarded from(DType::f32, rows, false);
  const Guarded into_lse(DType::f32, statistics, true);
  const Guarded from_lse(DType::f32, {2, 3, 2}, true);  // heads last
  std::uint64_t seed = 1;
  for (const Guarded* tensor : {&into, &from, &into_lse, &from_lse}) {
    tensor->for_each([&](std::int64_t offset) {
      tensor->view().data<float>()[offset] = static_cast<float>(Random(seed).normal(seed));
      ++seed;
    });
  }
  const std::vector<double> a = into.values(), b = from.values();
  const TensorView heads_last = from_lse.view().transpose(1, 2);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < into.view().elements(); ++i) {
    const std::int64_t batch = i / 48, q = i / 16 % 3, h = i / 8 % 2;
    const double x = std::exp(read_element(into_lse.view(), into_lse.view().offset(batch, h, q)));
    const double y = std::exp(read_element(heads_last, heads_last.offset(batch, h, q)));
    expected.push_back((x * a[static_cast<std::size_t>(i)] + y * b[static_cast<std::size_t>(i)]) / (x + y));
  }
  const auto merge = [](const AttentionPartial& to, const AttentionPartial& other) {
    in_context([&](Context& context) { merge_attention(context, to, other); });
  };
  merge({into.view(), into_lse.view()}, {from.view(), heads_last});
  EXPECT_LT(largest_difference(expected, into.values()), 1e-6);
  EXPECT_TRUE(into.canaries_alive() && into_lse.canaries_alive());

  const auto refused = [&](const AttentionPartial& to, const AttentionPartial& other) -> std::string {
    try {
      merge(to, other);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const AttentionPartial good{into.view(), into_lse.view()};
  EXPECT_THAT(refused(good, {from.view(), from_lse.view()}), HasSubstr("merged from has an output"));
  EXPECT_THAT(refused(good, {into.view().slice(1, 0, 2), heads_last}), HasSubstr("merged from"));
  const Guarded half(DType::bf16, rows, false);
  EXPECT_THAT(refused({half.view(), into_lse.view()}, good), HasSubstr("of bf16"));
  const std::array<std::int64_t, 3> shared = {0, 3, 1};
  EXPECT_THAT(refused({into.view(), TensorView(into_lse.view().raw(), DType::f32, statistics, shared)},
                      {from.view(), heads_last}),
              HasSubstr("stride 0 in dimension 0"));
  EXPECT_THAT(refused({into_lse.view(), into_lse.view()}, good), HasSubstr("not [batch, seq_q"));
}

TEST(CloseAttention, DividesOpenRowsAndKeepsTheOthers) {
  const Shape rows{1, 3, 1, 8};
  const Shape statistics{1, 1, 3};
  const Guarded sums(DType::f32, rows, true);
  const Guarded lse(DType::f32, statistics, false);
  const Guarded row_sum(DType::f64, statistics, false);
  const Guarded output(DType::bf16, rows, true);
  // Open; closed before; nothing seen.
  const std::array<float, 3> values = {6, 5, 0}, lses = {2, 0.5F, -INFINITY};
  for (std::int64_t q = 0; q < 3; ++q) {
    const auto i = static_cast<std::size_t>(q);
    for (std::int64_t c = 0; c < 8; ++c) {
      write_element(sums.view(), sums.view().offset(0, q, 0, c), values[i] * static_cast<float>(c));
    }
    lse.view().data<float>()[q] = lses[i];
    row_sum.view().data<double>()[q] = q == 0 ? 3 : 0;
  }
  const auto close = [&](const TensorView& to) {
    in_context([&](Context& context) {
      close_attention(context, {sums.view(), lse.view()}, row_sum.view(), to);
    });
  };
  close(output.view());
  std::vector<double> expected;
  for (const double value : {2, 5, 0}) {
    for (int c = 0; c < 8; ++c) expected.push_back(value * c);
  }
  EXPECT_EQ(output.values(), expected);
  EXPECT_FLOAT_EQ(lse.view().data<float>()[0], 2 * std::log(2.0F) + std::log(3.0F));
  EXPECT_EQ(lse.view().data<float>()[1], 0.5F);
  EXPECT_EQ(lse.view().data<float>()[2], -INFINITY);
  EXPECT_EQ(sums.view().data<float>()[sums.view().offset(0, 0, 0, 1)], 6) << "the sums are left alone";
  EXPECT_TRUE(output.canaries_alive() && lse.canaries_alive() && sums.canaries_alive());

  const auto refused = [&](const TensorView& to) -> std::string {
    try {
      close(to);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(refused(output.view().slice(1, 0, 2)), HasSubstr("the closed output is [1, 2, 1, 8] of bf16"));
  EXPECT_THAT(refused(TensorView(output.view().raw(), DType::f64, rows)), HasSubstr("of f64; it has to be"));
  const std::array<std::int64_t, 4> shared = {0, 0, 0, 1};
  EXPECT_THAT(refused(TensorView(output.view().raw(), DType::bf16, rows, shared)),
              HasSubstr("stride 0 in dimension 1"));
}

// What a plan counts of it.
TEST(CloseAttention, SaysWhatItDoes) {
  const TensorView sums(nullptr, DType::f32, {2, 5, 4, 16});
  const TensorView lse(nullptr, DType::f32, {2, 4, 5});
  const TensorView row_sum(nullptr, DType::f64, {2, 4, 5});
  const TensorView output(nullptr, DType::f16, {2, 5, 4, 16});
  Context context(describe_cpu());
  context.phase(Phase::step, [&] { close_attention(context, {sums, lse}, row_sum, output); });
  ASSERT_EQ(context.work(Phase::step).size(), 1U);
  EXPECT_EQ(context.work(Phase::step)[0].work.kernel, "attention close");
  EXPECT_EQ(context.work(Phase::step)[0].work.bytes, 640 * (4 + 2));
}

// What a plan counts of it.
TEST(MergeAttention, SaysWhatItDoes) {
  const TensorView rows(nullptr, DType::f32, {2, 5, 4, 16});
  const TensorView lse(nullptr, DType::f32, {2, 4, 5});
  Context context(describe_cpu());
  context.phase(Phase::step, [&] { merge_attention(context, {rows, lse}, {rows, lse}); });
  ASSERT_EQ(context.work(Phase::step).size(), 1U);
  EXPECT_EQ(context.work(Phase::step)[0].work.kernel, "attention merge");
  EXPECT_EQ(context.work(Phase::step)[0].work.bytes, 3 * 4 * (640 + 40));
}

}  // namespace
}  // namespace headroom
