// The eager step and loss programs against figures that were measured in PyTorch.
#include <gtest/gtest.h>

#include <array>

#include "eager/devices.h"
#include "headroom/eager.h"

namespace headroom {
namespace {

constexpr std::int64_t kVocab = 151'936;
constexpr std::int64_t kHidden = 2560;

// Peak over what was there before, in MB.
double loss_adds(std::int64_t tokens, const EagerOptions& options) {
  const Ledger ledger =
      rehearse_eager_loss({.tokens = tokens, .hidden = kHidden, .vocab = kVocab}, options, h200());
  const EagerMemory memory = eager_memory(ledger);
  return mebibytes(memory.stage({}).peak_bytes - memory.stage({{StageKind::inputs}}).live_bytes);
}

// Measured on an H200: bf16, forward and backward, MB over inputs, gradients included.
struct LossRow {
  EagerLoss loss;
  std::int64_t tokens;
  double added;
};
constexpr std::array<LossRow, 8> kLoss = {{
    {EagerLoss::full, 8192, 14'244},
    {EagerLoss::full, 32768, 56'976},
    {EagerLoss::chunked_recompute, 8192, 7904},
    {EagerLoss::chunked_recompute, 32768, 8024},
    {EagerLoss::chunked_recompute, 131072, 8504},
    {EagerLoss::chunked_compiled, 8192, 2732},
    {EagerLoss::chunked_compiled, 32768, 2852},
    {EagerLoss::chunked_compiled, 131072, 3332},
}};

TEST(EagerLoss, MatchesTheH200) {
  for (const LossRow& row : kLoss) {
    SCOPED_TRACE(fmt::format("loss {}, {} tokens", static_cast<int>(row.loss), row.tokens));
    EXPECT_NEAR(loss_adds(row.tokens, {.loss = row.loss}), row.added, 1.5);
  }
  // 16,384 tokens, logits of every chunk kept: measured 15,130.13 in all over 886.12.
  EXPECT_NEAR(loss_adds(16384, {.loss = EagerLoss::chunked}), 14244.01, 1.5);
}

TEST(EagerLoss, LogitsAt131072Tokens) {
  const EagerOptions as_published{.loss = EagerLoss::full, .upcast_logits = false};
  const Ledger ledger =
      rehearse_eager_loss({.tokens = 131072, .hidden = kHidden, .vocab = kVocab}, as_published, h200());
  // Published: "Tried to allocate 37.09 GiB" in 94.97 GiB, and 111 GB for the loss alone.
  const EagerMemory memory = eager_memory(ledger, parse_bytes("94.97GiB"));
  ASSERT_TRUE(memory.failure.has_value());
  EXPECT_NEAR(gibibytes(memory.failure->bytes), 37.09, 0.01);
  EXPECT_NEAR(loss_adds(131072, as_published) / 1024, 3 * 37.09375, 0.01);
}

EagerMemory qwen3_4b(std::int64_t seq, const EagerOptions& options, std::int64_t capacity = 0) {
  return eager_memory(rehearse_eager(built_in_model("qwen3-4b"), {.context = seq}, options, h200()),
                      capacity);
}

// Measured on an H200: transformers, SDPA, checkpointing, compiled chunked loss, no optimizer.
TEST(EagerStep, Qwen3At131072Tokens) {
  const EagerMemory memory = qwen3_4b(131072, {.loss = EagerLoss::chunked_compiled});
  EXPECT_NEAR(gibibytes(memory.live_peak_bytes), 57.73, 57.73 * 0.001);
  // Three processes. Another run, of which nothing else is known, had 83.8 GiB (docs/memory.md).
  EXPECT_NEAR(gibibytes(memory.reserved_bytes), 69.17, 69.17 * 0.01);
  EXPECT_EQ(memory.stage({{StageKind::forward}, {StageKind::embedding}}).live_bytes -
                memory.stage({{StageKind::load}}).live_bytes,
            640 * kMiB);
}

// What a process did before is part of what it reserves: the same step after the model was converted from
// f32.
TEST(EagerStep, ConvertedModelsReserveMore) {
  const EagerMemory memory = qwen3_4b(131072, {.loss = EagerLoss::chunked_compiled, .made_in_f32 = true});
  EXPECT_NEAR(gibibytes(memory.live_peak_bytes), 57.73, 57.73 * 0.001);
  EXPECT_NEAR(gibibytes(memory.reserved_bytes), 75.94, 75.94 * 0.01);
}

// Measured on an H200 with PyTorch 2.11 and transformers 5.17: MiB of torch.cuda.max_memory_allocated() and
// max_memory_reserved(), one step each, two with the optimizer. In f32 PyTorch composes SDPA of operators
// that the naive form plays in another order: as many live at once, but reserved is not the same
// (docs/memory.md).
struct StepRow {
  std::string_view model;
  std::int64_t layers, seq;
  EagerOptions options;
  double live, reserved;  // reserved 0: not compared
};
constexpr EagerOptions kCompiled{.loss = EagerLoss::chunked_compiled};
constexpr EagerOptions kCompiledKept{.loss = EagerLoss::chunked_compiled, .checkpoint_layers = false};
constexpr std::array<StepRow, 8> kSteps = {{
    {"qwen3-4b", 2, 16384, kCompiled, 5695.05, 6628},
    {"qwen3-4b", 2, 16384, kCompiledKept, 9615.59, 10100},
    {"llama3-8b", 2, 16384, {}, 10818.35, 14208},
    {"llama3-8b", 2, 16384, {.checkpoint_layers = false}, 16838.48, 19456},
    {"qwen3-4b", 4, 8192, {.adamw = true}, 12837.43, 15578},
    {"qwen3-4b", 4, 8192, {.checkpoint_layers = false, .adamw = true}, 18001.12, 20474},
    {"qwen3-4b", 2, 8192, {.dtype = DType::f32}, 38399.25, 0},
    {"qwen3-4b", 2, 8192, {.checkpoint_layers = false, .dtype = DType::f32}, 48735.48, 0},
}};

TEST(EagerStep, MatchesTheH200) {
  for (const StepRow& row : kSteps) {
    SCOPED_TRACE(fmt::format("{}, {} layers, {} tokens, checkpoint {}, {}", row.model, row.layers, row.seq,
                             row.options.checkpoint_layers, name(row.options.dtype)));
    ModelConfig config = built_in_model(row.model);
    config.layers = row.layers;
    const EagerMemory memory =
        eager_memory(rehearse_eager(config, {.context = row.seq}, row.options, h200()));
    EXPECT_NEAR(mebibytes(memory.live_peak_bytes), row.live, row.live * 0.005);
    if (row.reserved > 0) {
      EXPECT_NEAR(mebibytes(memory.reserved_bytes), row.reserved, row.reserved * 0.05);
    }
  }
}

// EmbeddingBackwardKernel.cu: f32 rows for the partial sums, numel / 10 + min(numel, num_weights) of them.
// With few tokens and every layer's gradients there, that is the moment of the peak.
TEST(EagerStep, TheEmbeddingsPartialSumsAreInThePeakOfShortContexts) {
  struct Row {
    std::string_view model;
    std::int64_t seq, vocab;  // vocab 0: the model's own
    std::int64_t partial_rows;
    bool is_peak;
  };
  for (const Row& row :
       {Row{"qwen3-4b", 512, 0, 51 + 512, true}, Row{"qwen3-4b", 4096, 0, 409 + 4096, true},
        Row{"llama3-8b", 4096, 0, 409 + 4096, true}, Row{"llama3-8b", 16384, 2000, 1638 + 2000, false}}) {
    SCOPED_TRACE(fmt::format("{}, {} tokens, {} words", row.model, row.seq, row.vocab));
    ModelConfig config = built_in_model(row.model);
    if (row.vocab > 0) config.vocab = row.vocab;
    const EagerMemory memory = eager_memory(rehearse_eager(config, {.context = row.seq}, kCompiled, h200()));
    const StageUsage& embedding = memory.stage({{StageKind::backward}, {StageKind::embedding}});
    EXPECT_EQ(embedding.peak_bytes == memory.stage({}).peak_bytes, row.is_peak);
    // Tied, the embedding's own gradient goes too: it is added to that of the loss.
    const std::int64_t gradient = config.tied_embeddings ? config.vocab * config.hidden * 2 : 0;
    EXPECT_EQ(embedding.peak_bytes - embedding.live_bytes, row.partial_rows * config.hidden * 4 + gradient);
  }
}

// Chunks that keep nothing: playing eight says what playing all would, with and without a limit.
TEST(EagerLoss, LaterChunksChangeNothing) {
  const auto expect_same = [](const Ledger& some, const Ledger& all, std::int64_t capacity) {
    const EagerMemory a = eager_memory(some, capacity);
    const EagerMemory b = eager_memory(all, capacity);
    EXPECT_EQ(a.live_peak_bytes, b.live_peak_bytes);
    EXPECT_EQ(a.reserved_bytes, b.reserved_bytes);
    ASSERT_EQ(a.failure.has_value(), b.failure.has_value());
    if (a.failure) {
      EXPECT_EQ(a.failure->block, b.failure->block);
      EXPECT_EQ(a.failure->stage, b.failure->stage);
      EXPECT_EQ(a.failure->allocated_bytes, b.failure->allocated_bytes);
    }
    ASSERT_EQ(a.stages.size(), b.stages.size());
    for (std::size_t i = 0; i < a.stages.size(); ++i) {
      EXPECT_EQ(a.stages[i].live_bytes, b.stages[i].live_bytes) << a.stages[i].stage.text();
      EXPECT_EQ(a.stages[i].peak_bytes, b.stages[i].peak_bytes) << a.stages[i].stage.text();
    }
  };
  for (const EagerLoss loss : {EagerLoss::chunked_recompute, EagerLoss::chunked_compiled}) {
    for (const std::int64_t vocab : {1009, 32'000, 151'936}) {
      for (const std::int64_t chunk : {1, 8, 129, 700}) {
        for (const std::int64_t tokens :
             {20 * chunk, 23 * chunk + chunk / 2 + 1, 9 * chunk, 64 * chunk - 1}) {
          EagerOptions options{.loss = loss, .loss_chunk = chunk, .adamw = true};
          SCOPED_TRACE(fmt::format("loss {}, {} words, {} tokens in chunks of {}", static_cast<int>(loss),
                                   vocab, tokens, chunk));
          const EagerLossProblem problem{.tokens = tokens, .hidden = 96, .vocab = vocab};
          ModelConfig config = built_in_model("demo");
          config.vocab = vocab;
          const Ledger some = rehearse_eager_loss(problem, options, h200());
          const Ledger step = rehearse_eager(config, {.context = tokens}, options, h200());
          options.chunks_played = tokens;
          const Ledger all = rehearse_eager_loss(problem, options, h200());
          const Ledger whole_step = rehearse_eager(config, {.context = tokens}, options, h200());
          expect_same(some, all, 0);
          expect_same(step, whole_step, 0);
          const std::int64_t reserved = eager_memory(whole_step).reserved_bytes;
          for (const std::int64_t percent : {70, 85, 92, 97, 100})
            expect_same(step, whole_step, reserved * percent / 100);
        }
      }
    }
  }
}

TEST(EagerStep, OptionsTradeAsTheyShould) {
  const auto live = [](const EagerOptions& options) { return qwen3_4b(4096, options).live_peak_bytes; };
  const std::int64_t usual = live({});
  EXPECT_GT(live({.checkpoint_layers = false}), usual);
  EXPECT_GT(live({.attention = EagerAttention::naive}), usual);
  // Two moments of every parameter, and their roots while the optimizer runs.
  EXPECT_GT(live({.adamw = true}), 5 * 4'022'468'096 * 2);
  // In f32 twice that, and the copies of one layer's matrices; with 8-bit moments six bytes a parameter.
  EXPECT_GT(live({.adamw = true, .state = StatePrecision::f32}), 5 * 4'022'468'096 * 4);
  EXPECT_LT(live({.adamw = true, .state = StatePrecision::eight_bit}), live({.adamw = true}));
  EXPECT_GT(live({.dtype = DType::f32}), usual);
}

}  // namespace
}  // namespace headroom
