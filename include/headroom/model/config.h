// What a decoder of the Qwen3 / Llama family is made of, read from and written to Hugging Face's config.json.
// A value: what is not used by a kind of rope or window stands at its default, so equal models compare equal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/dtype.h"
#include "headroom/ops/rope_frequencies.h"

namespace headroom {

// As Hugging Face calls it: default, linear, ...
[[nodiscard]] std::string_view name(RopeKind kind);

struct ModelConfig {
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t mlp = 0;  // width between up and down projection
  double rms_epsilon = 1e-6;
  bool tied_embeddings = false;  // the embedding is also the output projection
  bool qk_norm = false;          // queries and keys are normalised per head: Qwen3 does, Llama does not
  // The embedding's row of this token gets no gradient from lookups; as an output it gets its gradient.
  std::optional<std::int64_t> pad_token = {};
  std::int64_t max_positions = 0;
  RopeSettings rope;
  std::int64_t sliding_window = 0;        // tokens a sliding layer sees, itself included; 0: no layer slides
  std::vector<bool> sliding_layers = {};  // [layers], empty where no layer slides; Qwen3 only

  bool operator==(const ModelConfig&) const = default;
};

// Throws with the key (as config.json calls it), its value, and what is accepted.
void validate(const ModelConfig& config);

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> ignored;  // keys of the file that transformers does not read either
};

// Hugging Face's config.json, of model_type qwen3 or llama, as the newest transformers reads it: the same
// defaults for what is missing, the same types, the same precedence where something is said twice. What it
// raises for is refused, and so is what it computes and Headroom does not. `source` opens every message.
[[nodiscard]] ParsedConfig parse_config_file(std::string_view json, std::string_view source = "config.json");
[[nodiscard]] ModelConfig parse_model_config(std::string_view json, std::string_view source = "config.json");

// A config.json for transformers' from_pretrained, with both forms of rope; `weights` is the dtype that it
// names.
[[nodiscard]] std::string to_json(const ModelConfig& config, DType weights = DType::f32);

// demo, qwen3-0.6b, ..., llama3-8b, with the figures their makers published.
[[nodiscard]] ModelConfig built_in_model(std::string_view name);
[[nodiscard]] std::span<const std::string_view> built_in_model_names();

struct FoundModel {
  ModelConfig config;
  std::optional<std::filesystem::path> folder;  // its files; a built-in model has none
  std::vector<std::string> notes;  // what a person should know of how its files were read, a line each
};

// A built-in model, or the one whose config.json lies in the folder of that name. A built-in name is always
// the built-in model: a folder that is called demo is ./demo. Where the configuration ties the output
// projection to the embedding, and weights in the folder have two that differ, the model is not tied: so
// transformers reads it.
[[nodiscard]] FoundModel open_model(const std::string& name_or_folder);
[[nodiscard]] ModelConfig find_model(const std::string& name_or_folder);

}  // namespace headroom
