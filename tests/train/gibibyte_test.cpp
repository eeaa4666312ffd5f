// Past a gibibyte: planned equals run, to the byte, and the process holds the arenas and at most 64 MiB more,
// watched all the while. ctest gives every combination a process of its own.
#include <gtest/gtest.h>

#include <array>

#include "train/planned_run.h"
#include "train/process_memory.h"

namespace headroom {
namespace {

// Each has its own way to take much memory with little arithmetic: weights, or many tokens of few numbers.
enum Model : std::size_t { kNarrow, kHeads, kWords, kWide, kDeep, kModels };
std::vector<ModelConfig> models() {
  std::vector<ModelConfig> models(kModels, small_model(true, true));
  ModelConfig& narrow = models[kNarrow];
  narrow.hidden = 32;
  narrow.heads_q = 2;
  narrow.heads_kv = 1;
  narrow.mlp = 64;
  narrow.layers = 2;
  ModelConfig& heads = models[kHeads];
  heads.heads_q = 8;
  heads.heads_kv = 8;
  heads.head_dim = 128;
  heads.layers = 2;
  ModelConfig& words = models[kWords];
  words.vocab = 700'001;
  words.tied_embeddings = false;
  ModelConfig& wide = models[kWide];
  wide.mlp = 16'000;
  wide.family = ModelFamily::llama;
  ModelConfig& deep = models[kDeep];
  deep.hidden = 128;
  deep.mlp = 4'000;
  deep.heads_kv = 4;
  deep.layers = 40;
  return models;
}

std::vector<LayerPolicy> policies(std::int64_t layers) {
  return {{.keep_all = layers},
          {.keep_attention = layers},
          {.recompute = layers, .input_every = 2},
          {.offload = layers},
          {.keep_all = 1, .offload = layers - 1}};
}

std::int64_t arena_bytes(const Combination& c) {
  const Layout layout = rehearse_training(problem_of(c), strategy_of(c), describe_cpu());
  return layout.reserved(Space::device) + layout.reserved(Space::host);
}

// Every model with every policy; the other values go round beside them. As many tokens as it takes.
constexpr std::size_t kCombinations = 25;
Combination combination(std::size_t n) {
  constexpr std::array kMasks = {"window:64", "causal+dilated:256/4", "causal"};
  constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};
  const std::size_t model = n % kModels;
  const bool few_tokens = model >= kWords;  // two micro-steps and full attention are quick there
  const ModelConfig config = models()[model];
  Combination c{.config = config,
                .sizes = {.batch = n % 4 == 3 ? 2 : 1, .context = 251, .max_documents = n % 7 == 2 ? 300 : 0},
                .layers = policies(config.layers)[n / kModels],
                .mask = kMasks[n % (few_tokens ? 3 : 2)],
                .dtype = kDTypes[n / 2 % kDTypes.size()],
                .accumulation = few_tokens && n % 2 == 1 ? 2 : 1,
                .loss_chunk = n % 2 == 0 ? 0 : 512,
                .mlp_tile = model != kWide && n / 2 % 2 == 1 ? 1024 : 0};
  while (arena_bytes(c) <= kGiB) c.sizes.context += c.sizes.context / 4;
  return c;
}

class Gibibyte : public testing::TestWithParam<std::size_t> {};

TEST_P(Gibibyte, IsTakenAsPlannedAndLittleElse) {
  if (!kResidentIsOurs) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const Combination c = combination(GetParam());
  SCOPED_TRACE(to_string(c));
  const ResidentWatch watch;
  const std::int64_t arenas = run_as_planned(c);
  EXPECT_GT(arenas, kGiB);
  EXPECT_LE(watch.peak_bytes(), arenas + kOutsideArenaBytes);
  EXPECT_GE(watch.peak_bytes(), arenas);  // every page is present
  fmt::print("{}\narenas {}, resident {} beyond them\n", to_string(c), format_bytes(arenas),
             format_bytes(watch.peak_bytes() - arenas));
}

// Of every model and every policy one, for `make test`; the others have the label huge.
INSTANTIATE_TEST_SUITE_P(Some, Gibibyte, testing::Range<std::size_t>(0, kCombinations, 6));
INSTANTIATE_TEST_SUITE_P(Every, Gibibyte, testing::Range<std::size_t>(0, kCombinations));

}  // namespace
}  // namespace headroom
