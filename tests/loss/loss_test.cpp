#include "headroom/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "loss_cases.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

using testing::Each;
using testing::HasSubstr;

// Those that run on a CPU.
std::vector<LossImplementation> all_but_the_reference() {
  std::vector<LossImplementation> rows;
  std::ranges::copy_if(loss_implementations().first(loss_implementations().size() - 1),
                       std::back_inserter(rows), [](const auto& row) {
                         return bool{row.supports({.tokens = 1, .hidden = 1, .vocab = 1}, describe_cpu())};
                       });
  return rows;
}

DeviceDescription cpu_with(SimdLevel simd, int threads) {
  DeviceDescription device = describe_cpu();
  device.simd = simd;
  device.cores = threads;
  return device;
}

TEST(Loss, WithinThePlainComputation) {
  // A slice of the small ones, for sanitizers too; the long test and `headroom verify loss` run them all.
  const std::vector<LossCase> cases = loss_cases();
  ASSERT_GE(cases.size(), 80U);
  std::map<std::string_view, int> served;
  for (std::size_t i = 0; i < cases.size(); i += 5) {
    const LossProblem& p = cases[i].problem;
    if (p.tokens * p.hidden * p.vocab > 1'500'000) continue;
    const PreparedLossCase prepared(cases[i]);
    for (const LossImplementation& row : all_but_the_reference()) {
      if (!serves(cases[i], row.name)) continue;
      ++served[row.name];
      for (const SimdLevel simd : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512}) {
        if (simd > describe_cpu().simd) continue;
        EXPECT_LE(prepared.judge(row.name, cpu_with(simd, 2)).worst(), 1)
            << row.name << " on " << name(simd) << ", " << cases[i].group << ": " << cases[i].name;
      }
    }
  }
  for (const LossImplementation& row : all_but_the_reference()) EXPECT_GT(served[row.name], 12) << row.name;
}

bool same_bits(const LossResults& a, const LossResults& b) {
  for (std::size_t i = 0; i < kLossResults; ++i) {
    if (a.values[i].size() != b.values[i].size() ||
        std::memcmp(a.values[i].data(), b.values[i].data(), a.values[i].size() * sizeof(double)) != 0)
      return false;
  }
  return true;
}

TEST(Loss, SameBitsWhateverTheChunksTheThreadsAndTheImplementation) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
      LossProblem problem{.tokens = 105,
                          .hidden = 9,
                          .vocab = 1733,
                          .dtype = dtype,
                          .reduction = reduction,
                          .shift = true,
                          .sequence_tokens = 35,
                          .label_smoothing = 0.1F,
                          .z_loss = 1e-3F,
                          .softcap = 4,
                          .token_weights = true};
      const PreparedLossCase prepared({.group = {}, .name = {}, .problem = problem, .ignored = 0.3});
      const DeviceDescription two = cpu_with(describe_cpu().simd, 2);
      const LossResults first = prepared.run(problem, "fused", two);
      for (const std::int64_t tokens : {1, 7, 33, 96, 104, 105, 4000}) {
        for (const std::int64_t words : {0, 1, 513, 1100, 1'000'000}) {
          problem.chunk_tokens = tokens;
          problem.chunk_vocab = words;
          EXPECT_TRUE(same_bits(first, prepared.run(problem, "fused", two))) << tokens << " x " << words;
        }
      }
      for (const int threads : {1, 2, 3}) {
        problem.chunk_tokens = 40;
        problem.chunk_vocab = 0;
        for (const LossImplementation& row : all_but_the_reference()) {
          EXPECT_TRUE(same_bits(first, prepared.run(problem, row.name, cpu_with(two.simd, threads))))
              << row.name << " on " << threads << " threads";
        }
      }
    }
  }
}

// The reference over f64 tensors.
class Reference {
 public:
  explicit Reference(const LossProblem& problem)
      : problem_(problem),
        device_(describe_cpu()),
        workspace_(static_cast<std::size_t>(
                       loss_implementations().back().workspace_bytes(problem, device_, Pass::backward)) /
                   sizeof(double)) {
    fill(hidden, problem.tokens * problem.hidden, 1);
    fill(weight, problem.vocab * problem.hidden, 2);
    fill(loss_gradient_, problem.reduction == Reduction::none ? problem.tokens : 1, 3);
    loss_.resize(loss_gradient_.size());
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      labels_.push_back(t % 4 == 2 ? problem.ignore_index : static_cast<std::int32_t>(t * 3 % problem.vocab));
      token_weights_.push_back(static_cast<float>(t % 3) * 0.75F);
    }
  }

  // sum of loss . dLoss
  double objective() {
    loss_implementations().back().forward(problem_, views(), workspace(), stream());
    double sum = 0;
    for (std::size_t i = 0; i < loss_.size(); ++i) sum += loss_[i] * loss_gradient_[i];
    return sum;
  }

  // dHidden, and dWeight added to ones.
  std::pair<std::vector<double>, std::vector<double>> gradients() {
    std::pair<std::vector<double>, std::vector<double>> result{hidden,
                                                               std::vector<double>(weight.size(), 1.0)};
    loss_implementations().back().backward(
        problem_,
        {.forward = views(),
         .loss_gradient = view(loss_gradient_, {static_cast<std::int64_t>(loss_.size())}),
         .hidden_gradient = view(result.first, {problem_.tokens, problem_.hidden}),
         .weight_gradient = view(result.second, {problem_.vocab, problem_.hidden})},
        workspace(), stream());
    return result;
  }

  std::vector<double> hidden, weight;

 private:
  static void fill(std::vector<double>& values, std::int64_t count, std::uint64_t seed) {
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(Random(seed).normal(static_cast<std::uint64_t>(i)));
    }
  }
  static TensorView view(std::vector<double>& data, const Shape& shape) {
    return {data.data(), DType::f64, shape};
  }
  LossForward views() {
    return {.hidden = view(hidden, {problem_.tokens, problem_.hidden}),
            .weight = view(weight, {problem_.vocab, problem_.hidden}),
            .labels = TensorView(labels_.data(), DType::i32, {problem_.tokens}),
            .token_weights = TensorView(token_weights_.data(), DType::f32, {problem_.tokens}),
            .loss = view(loss_, {static_cast<std::int64_t>(loss_.size())}),
            .saved = {}};
  }
  TensorView workspace() {
    return {workspace_.data(), DType::u8, {static_cast<std::int64_t>(workspace_.size() * sizeof(double))}};
  }
  [[nodiscard]] Stream stream() const {
    return {.device = &device_, .pool = nullptr, .poll = {}, .native = nullptr};
  }

  LossProblem problem_;
  DeviceDescription device_;
  std::vector<double> loss_gradient_, loss_, workspace_;
  std::vector<std::int32_t> labels_;
  std::vector<float> token_weights_;
};

TEST(Loss, TheReferenceHasTheDerivativesOfItsLoss) {
  const LossProblem plain{.tokens = 8, .hidden = 3, .vocab = 7};
  std::vector<LossProblem> problems(6, plain);
  problems[1].shift = true;
  problems[2].label_smoothing = 0.2F;
  problems[3].z_loss = 0.1F;
  problems[4].softcap = 1.5F;
  problems[5] = {.tokens = 8,
                 .hidden = 3,
                 .vocab = 7,
                 .reduction = Reduction::sum,
                 .shift = true,
                 .sequence_tokens = 4,
                 .label_smoothing = 0.1F,
                 .z_loss = 0.05F,
                 .softcap = 2,
                 .token_weights = true};
  problems.push_back(problems[5]);
  problems.back().reduction = Reduction::none;
  constexpr double kStep = 1e-5;
  for (std::size_t k = 0; k < problems.size(); ++k) {
    Reference reference(problems[k]);
    const auto [hidden_gradient, weight_gradient] = reference.gradients();
    const auto check_derivatives = [&](std::vector<double>& input, const std::vector<double>& gradient,
                                       double start) {
      for (std::size_t i = 0; i < input.size(); ++i) {
        const double value = input[i];
        input[i] = value + kStep;
        const double above = reference.objective();
        input[i] = value - kStep;
        const double below = reference.objective();
        input[i] = value;
        EXPECT_NEAR(gradient[i] - start, (above - below) / (2 * kStep), 1e-8) << "problem " << k << ", " << i;
      }
    };
    check_derivatives(reference.hidden, hidden_gradient, 0);
    check_derivatives(reference.weight, weight_gradient, 1);
  }
}

struct StepResults {
  float loss = -1;
  std::vector<float> hidden_gradient, weight_gradient;
};

// Forward and backward as a program calls them: through a Context, rehearsed and run.
StepResults run_step(const LossProblem& p, const std::vector<std::int32_t>& labels, std::string_view pinned) {
  StepResults results;
  run_rehearsed([&](Context& context) {
    const std::int64_t saved_bytes =
        pinned.empty()
            ? 0
            : choose(loss_implementations(), p, context.description(), pinned).implementation->saved_bytes(p);
    context.phase(Phase::step, [&] {
      const auto make = [&](std::string_view name, DType dtype, const Shape& shape) {
        return context.allocate(
            {.name = name, .category = Category::activations, .dtype = dtype, .shape = shape});
      };
      const Tensor hidden = make("hidden", DType::f32, {p.tokens, p.hidden});
      const Tensor weight = make("weight", DType::f32, {p.vocab, p.hidden});
      const Tensor label_tensor = make("labels", DType::i32, {p.tokens});
      const Tensor loss = make("loss", DType::f32, {1});
      const Tensor saved = make("saved", DType::u8, {saved_bytes});
      const Tensor loss_gradient = make("loss gradient", DType::f32, {1});
      const Tensor hidden_gradient = make("hidden gradient", DType::f32, {p.tokens, p.hidden});
      const Tensor weight_gradient = make("weight gradient", DType::f32, {p.vocab, p.hidden});
      context.run([&](const Stream&) {
        for (std::int64_t i = 0; i < p.tokens * p.hidden; ++i) {
          hidden.data<float>()[i] = static_cast<float>(Random(1).normal(static_cast<std::uint64_t>(i)));
          hidden_gradient.data<float>()[i] = -7;
        }
        for (std::int64_t i = 0; i < p.vocab * p.hidden; ++i) {
          weight.data<float>()[i] = static_cast<float>(Random(2).normal(static_cast<std::uint64_t>(i)));
          weight_gradient.data<float>()[i] = 0;
        }
        std::copy(labels.begin(), labels.end(), label_tensor.data<std::int32_t>());
        loss_gradient.data<float>()[0] = 1;
      });
      const LossForward forward{.hidden = hidden,
                                .weight = weight,
                                .labels = label_tensor,
                                .token_weights = {},
                                .loss = loss,
                                .saved = saved};
      loss_forward(context, p, forward, pinned);
      loss_backward(context, p,
                    {.forward = forward,
                     .loss_gradient = loss_gradient,
                     .hidden_gradient = hidden_gradient,
                     .weight_gradient = weight_gradient},
                    pinned);
      context.run([&](const Stream&) {
        results.loss = loss.data<float>()[0];
        results.hidden_gradient.assign(hidden_gradient.data<float>(),
                                       hidden_gradient.data<float>() + p.tokens * p.hidden);
        results.weight_gradient.assign(weight_gradient.data<float>(),
                                       weight_gradient.data<float>() + p.vocab * p.hidden);
      });
    });
  });
  return results;
}

TEST(Loss, AllLabelsIgnoredIsZeroThroughout) {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const LossProblem problem{.tokens = 5, .hidden = 4, .vocab = 9, .reduction = reduction};
    for (const LossImplementation& row : loss_implementations()) {
      if (!row.supports(problem, describe_cpu())) continue;
      const StepResults results = run_step(problem, {-100, -100, -100, -100, -100}, row.name);
      EXPECT_EQ(results.loss, 0) << row.name;
      EXPECT_THAT(results.hidden_gradient, Each(0.0F)) << row.name;
      EXPECT_THAT(results.weight_gradient, Each(0.0F)) << row.name;
    }
  }
}

TEST(Loss, TheFirstThatServesIsTaken) {
  const LossProblem problem{.tokens = 5, .hidden = 4, .vocab = 9};
  const StepResults own = run_step(problem, {1, 2, 3, 8, 0}, {});
  EXPECT_NEAR(own.loss, run_step(problem, {1, 2, 3, 8, 0}, "reference").loss, 1e-6);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "nothing was thrown";
}

// What predicted times and `headroom profile` are made of. Backward makes the logits once more.
TEST(Loss, SaysWhatItDoes) {
  const LossProblem problem{.tokens = 12, .hidden = 8, .vocab = 30, .dtype = DType::bf16, .chunk_tokens = 5};
  const TensorView hidden(nullptr, DType::bf16, {12, 8});
  const TensorView loss(nullptr, DType::f32, {1});
  const LossForward forward{.hidden = hidden,
                            .weight = TensorView(nullptr, DType::bf16, {30, 8}),
                            .labels = TensorView(nullptr, DType::i32, {12}),
                            .token_weights = {},
                            .loss = loss,
                            .saved = {}};
  Context context(describe_cpu());
  context.phase(Phase::step, [&] {
    loss_forward(context, problem, forward);
    loss_backward(context, problem,
                  {.forward = forward,
                   .loss_gradient = loss,
                   .hidden_gradient = hidden,
                   .weight_gradient = TensorView(nullptr, DType::f32, {30, 8})});
  });
  const std::span<const WorkRecord> work = context.work(Phase::step);
  ASSERT_EQ(work.size(), 2U);
  EXPECT_EQ(work[0].work.kernel, "loss");
  EXPECT_EQ(work[0].work.flops, 2 * 12 * 8 * 30);
  constexpr int kChunks = 3;
  EXPECT_EQ(work[0].work.bytes, 2 * (12 * 8 + kChunks * 30 * 8));
  EXPECT_EQ(work[1].work.kernel, "loss backward");
  EXPECT_EQ(work[1].work.flops, 3 * 2 * 12 * 8 * 30);
  EXPECT_EQ(work[1].work.bytes, 3 * 2 * 12 * 8 + kChunks * 2 * (2 + 4) * 30 * 8);
}

TEST(Loss, RefusesInOneLine) {
  const LossProblem problem{.tokens = 3, .hidden = 4, .vocab = 9};
  const auto with_label = [&](std::int32_t label) {
    return message_of([&] { run_step(problem, {1, label, 2}, "fused"); });
  };
  EXPECT_EQ(with_label(9), "label 9 of token 1 is neither in 0 to 8 nor -100, which is ignored");
  EXPECT_THAT(with_label(-1), HasSubstr("label -1 of token 1"));
  EXPECT_THAT(message_of([&] { run_step(problem, {1, 1, 1}, "fastest"); }), HasSubstr("fastest"));

  LossProblem chunked = problem;
  chunked.chunk_vocab = 512;
  EXPECT_FALSE(serves({.group = {}, .name = {}, .problem = chunked}, "standard"));
  const auto views = [&](const Shape& hidden, DType loss, std::int64_t saved_bytes) {
    return message_of([&] {
      Context context(describe_cpu());
      context.phase(Phase::step, [&] {
        loss_forward(context, problem,
                     {.hidden = TensorView(nullptr, DType::f32, hidden),
                      .weight = TensorView(nullptr, DType::f32, {9, 4}),
                      .labels = TensorView(nullptr, DType::i32, {3}),
                      .token_weights = {},
                      .loss = TensorView(nullptr, loss, {1}),
                      .saved = TensorView(nullptr, DType::u8, {saved_bytes})},
                     "standard");
      });
    });
  };
  EXPECT_THAT(views({3, 5}, DType::f32, 1 << 20), HasSubstr("hidden has shape [3, 5]"));
  EXPECT_THAT(views({3, 4}, DType::bf16, 1 << 20), HasSubstr("loss holds bf16"));
  EXPECT_EQ(views({3, 4}, DType::f32, 100), "standard keeps 576 bytes for backward, saved holds 100");
}

TEST(LossChunks, FitAndGrowWithTheBudget) {
  for (const LossProblem& problem :
       {LossProblem{.tokens = 131'072, .hidden = 2560, .vocab = 151'936, .dtype = DType::bf16},
        LossProblem{.tokens = 1000, .hidden = 64, .vocab = 32'000},
        LossProblem{.tokens = 50, .hidden = 8, .vocab = 300},
        LossProblem{.tokens = 5000, .hidden = 12'288, .vocab = 50'000, .dtype = DType::f16}}) {
    const DeviceDescription device = cpu_with(SimdLevel::avx2, 8);
    const auto added = [&](const LossChunks& chunks) {
      LossProblem chunked = problem;
      chunked.chunk_tokens = chunks.tokens;
      chunked.chunk_vocab = chunks.vocab;
      return loss_implementations().front().workspace_bytes(chunked, device, Pass::backward);
    };
    const LossChunks smallest = fit_loss_chunks(problem, device, 1);
    LossChunks before = smallest;
    for (std::int64_t budget = kMiB; budget < 200 * kGiB; budget += budget / 3) {
      const LossChunks chunks = fit_loss_chunks(problem, device, budget);
      if (added(smallest) > budget) {
        EXPECT_EQ(chunks, smallest) << budget;
        continue;
      }
      EXPECT_LE(added(chunks), budget);
      EXPECT_GE(chunks.tokens, before.tokens);
      EXPECT_TRUE(chunks.vocab == 0 || (before.vocab != 0 && chunks.vocab >= before.vocab)) << budget;
      // One step more would not fit.
      if (chunks.vocab != 0) {
        const std::int64_t words = chunks.vocab + 512;
        EXPECT_GT(added({chunks.tokens, words < problem.vocab ? words : 0}), budget);
      } else if (chunks.tokens < problem.tokens) {
        EXPECT_GT(added({chunks.tokens + 96, 0}), budget);
      }
      before = chunks;
    }
    EXPECT_EQ(before, (LossChunks{problem.tokens, 0}));
  }
}

TEST(LossMethod, BySizeAtTheThreeLengthsThatStartedIt) {
  const auto at = [](std::int64_t tokens) {
    return LossProblem{.tokens = tokens, .hidden = 2560, .vocab = 151'936, .dtype = DType::bf16};
  };
  const LossMethod whole{.implementation = "standard", .chunk_tokens = 0};
  const LossMethod chunked{.implementation = "chunked", .chunk_tokens = 4096};
  EXPECT_EQ(loss_method_by_size(at(4096), 10 * kGiB, 4096), whole);
  EXPECT_EQ(loss_method_by_size(at(40'000), 10 * kGiB, 4096), chunked);
  EXPECT_EQ(loss_method_by_size(at(131'072), 10 * kGiB, 4096), chunked);
  EXPECT_EQ(format_bytes(logits_bytes(at(4096))), "1.16 GiB");
  EXPECT_EQ(format_bytes(logits_bytes(at(40'000))), "11.32 GiB");
  EXPECT_EQ(format_bytes(logits_bytes(at(131'072))), "37.09 GiB");
  // One byte decides.
  EXPECT_EQ(loss_method_by_size(at(4096), logits_bytes(at(4096)), 7), whole);
  EXPECT_EQ(loss_method_by_size(at(4096), logits_bytes(at(4096)) - 1, 7).chunk_tokens, 7);
}

TEST(Loss, MemoryDoesNotGrowWithTheTokens) {
  const LossProblem problem{.tokens = 131'072, .hidden = 64, .vocab = 151'936};
  const DeviceDescription device = cpu_with(SimdLevel::avx512, 2);
  const auto find = [](std::string_view name) {
    return *std::ranges::find(loss_implementations(), name, &LossImplementation::name);
  };
  EXPECT_LT(find("fused").workspace_bytes(problem, device, Pass::backward), 256 * kMiB);
  EXPECT_EQ(find("fused").saved_bytes(problem), 0);
  EXPECT_EQ(find("standard").saved_bytes(problem), 131'072LL * 151'936 * 4);
  // Keeping every chunk's logits for backward is keeping them all.
  EXPECT_EQ(find("chunked").saved_bytes(problem), 131'072LL * 151'936 * 4);
}

}  // namespace
}  // namespace headroom
