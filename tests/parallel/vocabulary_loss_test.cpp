// The loss over ranks that divide the vocabulary, held to the loss of one rank and to the fp64 reference.
#include "headroom/parallel/vocabulary_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>

#include "case_tools.h"
#include "headroom/cpu.h"
#include "ops/cases.h"
#include "ring_run.h"

namespace headroom {
namespace {

struct DividedCase {
  std::string name;
  std::int64_t hidden = 24;
  std::int64_t vocab = 131;
  std::vector<std::int64_t> rank_tokens = {17, 16};
  std::int64_t chunk_tokens = 0;
  DType dtype = DType::f32;
  float label_smoothing = 0;
  float z_loss = 0;
  float softcap = 0;
  double ignored = 0.2;
  int rank_without_labels = -1;
};

std::vector<DividedCase> divided_cases() {
  return {{.name = "two ranks"},
          {.name = "three ranks, small chunks", .rank_tokens = {9, 8, 8}, .chunk_tokens = 4},
          {.name = "a chunk of one token a rank", .rank_tokens = {5, 3, 1, 2}, .chunk_tokens = 1},
          {.name = "many words", .vocab = 1500, .rank_tokens = {40, 37, 39}, .chunk_tokens = 50},
          {.name = "fewer words than ranks", .vocab = 3, .rank_tokens = {4, 4, 4, 4, 3}},
          {.name = "a rank without tokens", .rank_tokens = {6, 0, 5}, .chunk_tokens = 6},
          {.name = "a rank without labels", .rank_without_labels = 1},
          {.name = "smoothing", .label_smoothing = 0.1F},
          {.name = "z-loss", .chunk_tokens = 7, .z_loss = 1e-2F},
          {.name = "softcap", .label_smoothing = 0.05F, .softcap = 3},
          {.name = "bf16", .rank_tokens = {33, 32, 31}, .chunk_tokens = 20, .dtype = DType::bf16},
          {.name = "f16", .rank_tokens = {12, 12}, .dtype = DType::f16}};
}

std::int64_t ranks_of(const DividedCase& c) {
  return std::ssize(c.rank_tokens);
}
std::int64_t all_tokens(const DividedCase& c) {
  std::int64_t sum = 0;
  for (const std::int64_t tokens : c.rank_tokens) sum += tokens;
  return sum;
}
VocabularySlice slice_of(const DividedCase& c, std::int64_t rank) {
  const std::int64_t first = c.vocab * rank / ranks_of(c);
  return {.first = first, .words = c.vocab * (rank + 1) / ranks_of(c) - first};
}
LossProblem problem_of(const DividedCase& c, std::int64_t tokens) {
  return {.tokens = tokens,
          .hidden = c.hidden,
          .vocab = c.vocab,
          .dtype = c.dtype,
          .label_smoothing = c.label_smoothing,
          .z_loss = c.z_loss,
          .softcap = c.softcap,
          .chunk_tokens = c.chunk_tokens};
}

// All ranks' tensors in host memory, and what each rank's loss is weighed by.
struct Inputs {
  explicit Inputs(const DividedCase& c)
      : hidden(c.dtype, {all_tokens(c), c.hidden}, false),
        weight(c.dtype, {c.vocab, c.hidden}, false),
        old_gradient(DType::f32, {c.vocab, c.hidden}, false) {
    hidden.fill_normal(Random(1), 1);
    weight.fill_normal(Random(2), 0.5F);
    old_gradient.fill_normal(Random(3), 1);
    const Random random(4);
    std::int64_t token = 0;
    for (std::int64_t rank = 0; rank < ranks_of(c); ++rank) {
      for (std::int64_t i = 0; i < c.rank_tokens[static_cast<std::size_t>(rank)]; ++i, ++token) {
        const auto at = static_cast<std::uint64_t>(token);
        const bool ignored = rank == c.rank_without_labels || random.uniform(2 * at) < c.ignored;
        labels.push_back(
            ignored ? -100
                    : static_cast<std::int32_t>(random.uniform(2 * at + 1) * static_cast<double>(c.vocab)));
      }
    }
  }

  Guarded hidden, weight, old_gradient;
  std::vector<std::int32_t> labels;
};

float loss_gradient_of(std::int64_t rank) {
  return 0.5F + 0.25F * static_cast<float>(rank);
}

struct Results {
  std::vector<float> losses;            // [ranks]
  std::vector<double> hidden_gradient;  // [tokens, hidden]
  std::vector<double> weight_gradient;  // [vocab, hidden]
};

// The part of a tensor that a rank has, and where it comes from and goes to in host memory.
struct RankPart {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::span<std::byte> rows_of(const TensorView& whole, const RankPart& part) {
  const TensorView rows = whole.slice(0, part.first, part.count);
  return {static_cast<std::byte*>(rows.raw()), static_cast<std::size_t>(rows.bytes())};
}

// One rank's forward and backward in its device's memory; `run(context, views)` calls the loss. Its results
// go to the tensors of all ranks. A rehearsal comes first, and has to have said what is sent.
template <class Run>
void run_rank(const DividedCase& c, const Inputs& inputs, const RankPart& tokens, const RankPart& words,
              float loss_gradient, Backend& backend, Communicator* communicator,
              const Guarded& hidden_gradient, const Guarded& weight_gradient, float& loss, const Run& run) {
  const auto step = [&](Context& context) {
    const auto take = [&](DType dtype, const Shape& shape, std::span<const std::byte> from) {
      Tensor tensor = context.allocate(
          {.name = "test", .category = Category::activations, .dtype = dtype, .shape = shape});
      if (!from.empty()) context.upload(tensor, from);
      return tensor;
    };
    const Shape of_tokens{tokens.count, c.hidden};
    const Shape of_words{words.count, c.hidden};
    const std::span labels =
        std::span(inputs.labels)
            .subspan(static_cast<std::size_t>(tokens.first), static_cast<std::size_t>(tokens.count));
    const Tensor hidden = take(c.dtype, of_tokens, rows_of(inputs.hidden.view(), tokens));
    const Tensor weight = take(c.dtype, of_words, rows_of(inputs.weight.view(), words));
    const Tensor label = take(DType::i32, {tokens.count}, std::as_bytes(labels));
    const Tensor upstream = take(DType::f32, {1}, std::as_bytes(std::span(&loss_gradient, 1)));
    const Tensor value = take(DType::f32, {1}, {});
    const Tensor of_hidden = take(c.dtype, of_tokens, {});
    const Tensor of_weight = take(DType::f32, of_words, rows_of(weight_gradient.view(), words));
    run(context, LossBackward{.forward = {.hidden = hidden,
                                          .weight = weight,
                                          .labels = label,
                                          .token_weights = {},
                                          .loss = value,
                                          .saved = {}},
                              .loss_gradient = upstream,
                              .hidden_gradient = of_hidden,
                              .weight_gradient = of_weight});
    const auto bring = [&](const Tensor& from, std::span<std::byte> to) {
      if (!to.empty()) context.download(to, from);
    };
    bring(value, std::as_writable_bytes(std::span(&loss, 1)));
    bring(of_hidden, rows_of(hidden_gradient.view(), tokens));
    bring(of_weight, rows_of(weight_gradient.view(), words));
  };
  const Ranks ranks = communicator == nullptr ? Ranks{} : communicator->ranks();
  Context rehearsal(backend.description(), ranks);
  rehearsal.phase(Phase::micro_step, [&] { step(rehearsal); });
  Traffic planned;
  for (const WorkRecord& record : rehearsal.work(Phase::micro_step)) {
    planned.sent_bytes += record.work.sent_bytes;
    planned.received_bytes += record.work.received_bytes;
  }
  const Traffic before = communicator == nullptr ? Traffic{} : communicator->traffic();
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()), communicator);
  context.phase(Phase::micro_step, [&] { step(context); });
  if (communicator == nullptr) return;
  EXPECT_EQ(communicator->traffic().sent_bytes - before.sent_bytes, planned.sent_bytes);
  EXPECT_EQ(communicator->traffic().received_bytes - before.received_bytes, planned.received_bytes);
}

RankPart tokens_of(const DividedCase& c, std::size_t rank) {
  RankPart part{.first = 0, .count = c.rank_tokens[rank]};
  for (std::size_t r = 0; r < rank; ++r) part.first += c.rank_tokens[r];
  return part;
}

Guarded copy_of(const Guarded& from) {
  Guarded to(DType::f32, from.view().shape(), false);
  std::copy_n(from.view().data<float>(), from.view().elements(), to.view().data<float>());
  return to;
}

// Rank by rank with the whole weight, as ranks that divide tokens do; `pinned` names a row of the loss.
Results by_tokens(const DividedCase& c, const Inputs& inputs, Backend& backend,
                  std::string_view pinned = {}) {
  Results results;
  results.losses.resize(c.rank_tokens.size());
  const Guarded weight_gradient = copy_of(inputs.old_gradient);
  const Guarded hidden_gradient(c.dtype, {all_tokens(c), c.hidden}, false);
  for (std::size_t rank = 0; rank < c.rank_tokens.size(); ++rank) {
    const RankPart tokens = tokens_of(c, rank);
    LossProblem problem = problem_of(c, tokens.count);
    problem.chunk_tokens = 0;
    run_rank(
        c, inputs, tokens, {.first = 0, .count = c.vocab}, loss_gradient_of(static_cast<std::int64_t>(rank)),
        backend, nullptr, hidden_gradient, weight_gradient, results.losses[rank],
        [&](Context& context, const LossBackward& views) { loss_backward(context, problem, views, pinned); });
  }
  results.hidden_gradient = hidden_gradient.values();
  results.weight_gradient = weight_gradient.values();
  return results;
}

Results by_vocabulary(const DividedCase& c, const Inputs& inputs) {
  Results results;
  results.losses.resize(c.rank_tokens.size());
  std::vector<float> evaluated(c.rank_tokens.size());
  const Guarded weight_gradient = copy_of(inputs.old_gradient);
  const Guarded hidden_gradient(c.dtype, {all_tokens(c), c.hidden}, false);
  const Guarded unused_weights = copy_of(inputs.old_gradient);
  const Guarded unused_hidden(c.dtype, {all_tokens(c), c.hidden}, false);
  on_thread_ranks(static_cast<int>(ranks_of(c)), {}, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.ranks().rank);
    const RankPart tokens = tokens_of(c, rank);
    const VocabularySlice slice = slice_of(c, communicator.ranks().rank);
    const RankPart words{.first = slice.first, .count = slice.words};
    const VocabularyLoss loss{
        .problem = problem_of(c, tokens.count), .rank_tokens = c.rank_tokens, .slice = slice};
    const std::unique_ptr<Backend> backend = backend_under_test(1);
    const float gradient = loss_gradient_of(communicator.ranks().rank);
    run_rank(c, inputs, tokens, words, gradient, *backend, &communicator, hidden_gradient, weight_gradient,
             results.losses[rank], [&](Context& context, const LossBackward& views) {
               vocabulary_loss_backward(context, loss, views);
             });
    run_rank(c, inputs, tokens, words, gradient, *backend, &communicator, unused_hidden, unused_weights,
             evaluated[rank], [&](Context& context, const LossBackward& views) {
               vocabulary_loss_forward(context, loss, views.forward);
             });
  });
  EXPECT_EQ(evaluated, results.losses) << c.name;
  results.hidden_gradient = hidden_gradient.values();
  results.weight_gradient = weight_gradient.values();
  EXPECT_TRUE(weight_gradient.canaries_alive() && hidden_gradient.canaries_alive()) << c.name;
  return results;
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

class VocabularyLossLevels : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Device, VocabularyLossLevels, all_levels());

// At most twice the error of the token-parallel way on the same device, and of gradients three times.
TEST_P(VocabularyLossLevels, IsTheLossOfRanksThatDivideTokens) {
  const std::unique_ptr<Backend> device = backend_under_test(1);
  CpuBackend cpu(1);
  for (const DividedCase& c : divided_cases()) {
    const Inputs inputs(c);
    const Results truth = by_tokens(c, inputs, cpu, "reference");
    const Results plain = by_tokens(c, inputs, *device);
    const Results divided = by_vocabulary(c, inputs);
    for (std::size_t rank = 0; rank < c.rank_tokens.size(); ++rank) {
      const double floor = 4e-7 * std::abs(static_cast<double>(truth.losses[rank])) + 1e-9;
      EXPECT_NEAR(divided.losses[rank], truth.losses[rank],
                  2 * std::abs(static_cast<double>(plain.losses[rank] - truth.losses[rank])) + floor)
          << c.name << ", rank " << rank;
    }
    const double ulp = c.dtype == DType::f32 ? 1e-6 : 2e-3;
    EXPECT_LE(worst_difference(divided.hidden_gradient, truth.hidden_gradient),
              3 * worst_difference(plain.hidden_gradient, truth.hidden_gradient) + 0.1 * ulp)
        << c.name;
    EXPECT_LE(worst_difference(divided.weight_gradient, truth.weight_gradient),
              3 * worst_difference(plain.weight_gradient, truth.weight_gradient) + 1e-6)
        << c.name;
    EXPECT_EQ(by_vocabulary(c, inputs).losses, divided.losses) << c.name;  // same bits
  }
}

TEST(VocabularyLoss, RefusesWhatItDoesNotCompute) {
  Context context(CpuBackend(1).description(), {.rank = 0, .count = 2});
  const auto refused = [&](const auto& change) {
    VocabularyLoss loss{.problem = {.tokens = 4, .hidden = 8, .vocab = 10},
                        .rank_tokens = {4, 4},
                        .slice = {.first = 0, .words = 5}};
    change(loss);
    EXPECT_THROW(vocabulary_loss_forward(context, loss, {}), Error);
  };
  refused([](VocabularyLoss& loss) { loss.problem.shift = true; });
  refused([](VocabularyLoss& loss) { loss.problem.reduction = Reduction::none; });
  refused([](VocabularyLoss& loss) { loss.problem.chunk_vocab = 5; });
  refused([](VocabularyLoss& loss) { loss.rank_tokens = {4, 4, 4}; });
  refused([](VocabularyLoss& loss) { loss.rank_tokens = {3, 4}; });
  refused([](VocabularyLoss& loss) { loss.slice = {.first = 6, .words = 5}; });
}

// A chunk's buffers and logits are at most what it was cut for.
TEST(VocabularyLoss, ChunksFitTheirBudget) {
  const VocabularyLoss loss{
      .problem = {.tokens = 32'768, .hidden = 2560, .vocab = 151'936, .dtype = DType::bf16},
      .rank_tokens = std::vector<std::int64_t>(4, 32'768),
      .slice = {.first = 0, .words = 37'984}};
  const DeviceDescription device = CpuBackend(1).description();
  const TensorView none;
  std::int64_t last = std::int64_t{1} << 40;
  for (const std::int64_t budget : {std::int64_t{1} << 30, std::int64_t{1} << 27, std::int64_t{3} << 24}) {
    VocabularyLoss chunked = loss;
    chunked.problem.chunk_tokens = fit_vocabulary_chunk(loss, device, budget);
    EXPECT_LT(chunked.problem.chunk_tokens, last);
    last = chunked.problem.chunk_tokens;
    Context context(device, {.rank = 0, .count = 4});
    const Shape tokens{loss.problem.tokens, loss.problem.hidden};
    const Shape words{loss.slice.words, loss.problem.hidden};
    const LossBackward views{.forward = {.hidden = {nullptr, DType::bf16, tokens},
                                         .weight = {nullptr, DType::bf16, words},
                                         .labels = {nullptr, DType::i32, {loss.problem.tokens}},
                                         .token_weights = none,
                                         .loss = {nullptr, DType::f32, {1}},
                                         .saved = none},
                             .loss_gradient = {nullptr, DType::f32, {1}},
                             .hidden_gradient = {nullptr, DType::bf16, tokens},
                             .weight_gradient = {nullptr, DType::f32, words}};
    context.phase(Phase::micro_step, [&] { vocabulary_loss_backward(context, chunked, views); });
    EXPECT_LE(context.ledger().usage(Space::device).peak_bytes, budget);
  }
  EXPECT_EQ(fit_vocabulary_chunk(loss, device, 1), 96);
}

}  // namespace
}  // namespace headroom
