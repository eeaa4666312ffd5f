#include <fmt/ranges.h>

#include <array>

#include "headroom/core/error.h"
#include "headroom/model/config.h"

namespace headroom {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"demo",      "qwen3-0.6b", "qwen3-1.7b",
                                                    "qwen3-4b",  "qwen3-8b",   "qwen3-14b",
                                                    "qwen3-32b", "llama3-8b",  "llama3-70b"};

// What the Qwen3 dense models have in common; sizes by name.
ModelConfig qwen3(std::int64_t hidden, std::int64_t layers, std::int64_t heads_q, std::int64_t mlp,
                  bool tied) {
  return {.family = ModelFamily::qwen3,
          .vocab = 151'936,
          .hidden = hidden,
          .layers = layers,
          .heads_q = heads_q,
          .heads_kv = 8,
          .head_dim = 128,
          .mlp = mlp,
          .rms_epsilon = 1e-6,
          .tied_embeddings = tied,
          .max_positions = 40'960,
          .rope = {.theta = 1e6}};
}

// One layer, because one is enough to look things up, and narrow heads: at 16,384 tokens attention is most of
// a step. Bytes are tokens.
ModelConfig demo() {
  ModelConfig config = qwen3(128, 1, 2, 256, true);
  config.vocab = 256;
  config.heads_kv = 1;
  config.head_dim = 32;
  config.max_positions = std::int64_t{1} << 20;
  return config;
}

// Llama 3.1: trained at 8,192 positions, stretched to 131,072.
ModelConfig llama3(std::int64_t hidden, std::int64_t layers, std::int64_t heads_q, std::int64_t mlp) {
  return {.family = ModelFamily::llama,
          .vocab = 128'256,
          .hidden = hidden,
          .layers = layers,
          .heads_q = heads_q,
          .heads_kv = 8,
          .head_dim = 128,
          .mlp = mlp,
          .rms_epsilon = 1e-5,
          .tied_embeddings = false,
          .max_positions = 131'072,
          .rope = {.theta = 500'000,
                   .kind = RopeKind::llama3,
                   .factor = 8,
                   .original_positions = 8192,
                   .low_frequency_factor = 1,
                   .high_frequency_factor = 4}};
}

}  // namespace

std::span<const std::string_view> built_in_model_names() {
  return kNames;
}

ModelConfig built_in_model(std::string_view name) {
  if (name == "demo") return demo();
  if (name == "qwen3-0.6b") return qwen3(1024, 28, 16, 3072, true);
  if (name == "qwen3-1.7b") return qwen3(2048, 28, 16, 6144, true);
  if (name == "qwen3-4b") return qwen3(2560, 36, 32, 9728, true);
  if (name == "qwen3-8b") return qwen3(4096, 36, 32, 12'288, false);
  if (name == "qwen3-14b") return qwen3(5120, 40, 40, 17'408, false);
  if (name == "qwen3-32b") return qwen3(5120, 64, 64, 25'600, false);
  if (name == "llama3-8b") return llama3(4096, 32, 32, 14'336);
  if (name == "llama3-70b") return llama3(8192, 80, 64, 28'672);
  fail(ErrorKind::input, "model '{}' is unknown; use one of {}, or a Hugging Face folder", name,
       fmt::join(kNames, ", "));
}

}  // namespace headroom
