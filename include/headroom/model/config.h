// What a decoder of the Qwen3 / Llama family is made of, read from and written to Hugging Face's config.json.
// A value: what is not used by a kind of rope or window stands at its default, so equal models compare equal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/dtype.h"

namespace headroom {

// How rotary frequencies are stretched for contexts beyond those of pretraining.
enum class RopeScaling : std::uint8_t { none, linear, llama3, yarn };
[[nodiscard]] std::string_view name(RopeScaling scaling);  // as Hugging Face calls it: default, linear, ...

struct RopeConfig {
  double theta = 10'000;  // frequency i is theta^(-2 i / head_dim)
  RopeScaling kind = RopeScaling::none;
  double factor = 1;                    // all but none: by how much the context is stretched
  std::int64_t original_positions = 0;  // llama3, yarn: positions of pretraining
  double low_freq_factor = 0;           // llama3: wavelengths over original / low are stretched in full,
  double high_freq_factor = 0;          //         those under original / high not at all
  double beta_fast = 32;                // yarn: dimensions that turn more often than this stay,
  double beta_slow = 1;                 //       those that turn less often are stretched in full
  bool truncate = true;                 // yarn: the two bounds are rounded outwards to whole dimensions
  std::optional<double> attention_factor =
      std::nullopt;  // yarn: multiplies cos and sin; absent: 0.1 ln(factor) + 1

  bool operator==(const RopeConfig&) const = default;
};

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
  std::int64_t max_positions = 0;
  RopeConfig rope;
  std::int64_t sliding_window = 0;        // tokens a sliding layer sees, itself included; 0: no layer slides
  std::vector<bool> sliding_layers = {};  // [layers], empty where no layer slides; Qwen3 only

  bool operator==(const ModelConfig&) const = default;
};

// Throws with the key (as config.json calls it), its value, and what is accepted.
void validate(const ModelConfig& config);

// Hugging Face's config.json, of model_type qwen3 or llama; rope as rope_theta with rope_scaling, as
// rope_parameters, or both where they agree. `source` opens every message.
[[nodiscard]] ModelConfig parse_model_config(std::string_view json, std::string_view source = "config.json");

// A config.json for transformers' from_pretrained, with both forms of rope; `weights` is the dtype that it
// names.
[[nodiscard]] std::string to_json(const ModelConfig& config, DType weights = DType::f32);

// demo, qwen3-0.6b, ..., llama3-8b, with the figures their makers published.
[[nodiscard]] ModelConfig built_in_model(std::string_view name);
[[nodiscard]] std::span<const std::string_view> built_in_model_names();

}  // namespace headroom
