// What a decoder is made of, read from and written to Hugging Face's config.json.
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

// How transformers names, reads and writes a model; src/model/family.h has one row for each.
enum class ModelFamily : std::uint8_t { qwen3, llama };

// model_type in config.json: qwen3, llama.
[[nodiscard]] std::string_view name(ModelFamily family);

// What a layer is made of. Whatever depends on the kind of a layer asks these, never the family.
enum class AttentionKind : std::uint8_t { full, sliding };
enum class NormKind : std::uint8_t {
  pre,            // RMS norms before attention and before the MLP
  pre_and_heads,  // also over each head of queries and keys, before rope
};
enum class MlpKind : std::uint8_t { swiglu };

struct LayerSpec {
  AttentionKind attention = AttentionKind::full;
  NormKind norm = NormKind::pre;
  MlpKind mlp = MlpKind::swiglu;

  bool operator==(const LayerSpec&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::qwen3;
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t mlp = 0;  // width between up and down projection
  double rms_epsilon = 1e-6;
  bool tied_embeddings = false;  // the embedding is also the output projection
  // The embedding's row of this token gets no gradient from lookups; as an output it gets its gradient.
  std::optional<std::int64_t> pad_token = {};
  std::int64_t max_positions = 0;
  RopeSettings rope;
  std::int64_t sliding_window = 0;  // tokens a sliding layer sees, itself included; 0: no layer slides
  std::vector<AttentionKind> layer_attention = {};  // [layers], empty where no layer slides

  bool operator==(const ModelConfig&) const = default;
};

// What layer `layer` is made of: its attention is the configuration's, the rest the family's.
[[nodiscard]] LayerSpec layer_spec(const ModelConfig& config, std::int64_t layer);

// Throws with the key (as config.json calls it), its value, and what is accepted.
void validate(const ModelConfig& config);

struct ParsedConfig {
  ModelConfig config;
  std::vector<std::string> ignored;  // keys of the file that transformers does not read either
};

// Hugging Face's config.json, of one of the families, as the newest transformers reads it: the same
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
