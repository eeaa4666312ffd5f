#include "headroom/model/config.h"

#include <algorithm>

#include "headroom/core/error.h"
#include "model/family.h"
#include "model/json.h"
#include "model/parse_config.h"

namespace headroom {
namespace {

// Throws a KeyError unless the condition holds: the key, then the rest of the message.
template <class... Args>
void check_key(bool holds, std::string_view key, LocatedFormat<std::type_identity_t<Args>...> rest,
               Args&&... args) {
  if (holds) return;
  throw KeyError(key, fmt::format(rest.text, std::forward<Args>(args)...), rest.where);
}

void check_range(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) {
  check_key(value >= least && value <= most, key, "is {}; accepted: {} to {}", value, least, most);
}

// Written so that NaN fails.
void check_range(std::string_view key, double value, double above, double most) {
  check_key(value > above && value <= most, key, "is {}; accepted: over {} up to {}", value, above, most);
}

// The same rope with every setting that its kind does not use at its default.
RopeSettings canonical(const RopeSettings& rope) {
  RopeSettings used{.theta = rope.theta, .kind = rope.kind};
  if (rope.kind != RopeKind::none) used.factor = rope.factor;
  if (rope.kind == RopeKind::llama3) {
    used.original_positions = rope.original_positions;
    used.low_frequency_factor = rope.low_frequency_factor;
    used.high_frequency_factor = rope.high_frequency_factor;
  }
  if (rope.kind == RopeKind::yarn) {
    used.original_positions = rope.original_positions;
    used.beta_fast = rope.beta_fast;
    used.beta_slow = rope.beta_slow;
    used.truncate = rope.truncate;
    used.attention_factor = rope.attention_factor;
  }
  return used;
}

constexpr double kMaxFactor = 1e6;

void validate_rope(const RopeSettings& rope) {
  check_range("rope_theta", rope.theta, 1.0, 1e15);
  check(rope == canonical(rope), "rope of type {} is given settings of another type", name(rope.kind));
  if (rope.kind == RopeKind::none) return;
  check(rope.factor >= 1 && rope.factor <= kMaxFactor, "rope factor is {}; accepted: 1 to {}", rope.factor,
        kMaxFactor);
  if (rope.kind == RopeKind::linear) return;
  check_range("original_max_position_embeddings", rope.original_positions, 1, kMaxPositions);
  if (rope.kind == RopeKind::llama3) {
    check_range("low_freq_factor", rope.low_frequency_factor, 0.0, kMaxFactor);
    check_range("high_freq_factor", rope.high_frequency_factor, rope.low_frequency_factor, kMaxFactor);
  } else {
    check_range("beta_slow", rope.beta_slow, 0.0, kMaxFactor);
    check_key(rope.beta_fast >= rope.beta_slow && rope.beta_fast <= kMaxFactor, "beta_fast",
              "is {}; accepted: beta_slow, {}, up to {}", rope.beta_fast, rope.beta_slow, kMaxFactor);
    if (rope.attention_factor) check_range("attention_factor", *rope.attention_factor, 0.0, kMaxFactor);
  }
}

// The first layer that slides; the number of layers where none does.
std::int64_t first_sliding(const ModelConfig& config) {
  return std::ranges::find(config.layer_attention, AttentionKind::sliding) - config.layer_attention.begin();
}

void validate_window(const ModelConfig& config) {
  check_range("sliding_window", config.sliding_window, 0, kMaxPositions);
  if (config.sliding_window == 0) {
    check_key(config.layer_attention.empty(), "sliding_window",
              "is 0 and {} layers are listed; accepted: none", config.layer_attention.size());
    return;
  }
  check_key(family_row(config.family).slides, "sliding_window", "is {}; accepted: a {} model has none",
            config.sliding_window, name(config.family));
  check_key(std::ssize(config.layer_attention) == config.layers, "layer_types",
            "has {} entries; accepted: {}, one a layer", config.layer_attention.size(), config.layers);
  check_key(first_sliding(config) < config.layers, "sliding_window", "is {} and no layer slides; accepted: 0",
            config.sliding_window);
}

nlohmann::ordered_json rope_settings(const RopeSettings& rope) {
  nlohmann::ordered_json json = {{"rope_type", name(rope.kind)}};
  if (rope.kind != RopeKind::none) json["factor"] = rope.factor;
  if (rope.original_positions > 0) json["original_max_position_embeddings"] = rope.original_positions;
  if (rope.kind == RopeKind::llama3) {
    json["low_freq_factor"] = rope.low_frequency_factor;
    json["high_freq_factor"] = rope.high_frequency_factor;
  }
  if (rope.kind == RopeKind::yarn) {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["truncate"] = rope.truncate;
    if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  }
  return json;
}

std::string_view activation_name(MlpKind kind) {
  switch (kind) {
    case MlpKind::swiglu: return "silu";
  }
  return "unknown";
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    default: fail(ErrorKind::input, "weights are {}; accepted: f32, bf16 or f16", name(dtype));
  }
}

}  // namespace

std::string_view name(RopeKind kind) {
  switch (kind) {
    case RopeKind::none: return "default";
    case RopeKind::linear: return "linear";
    case RopeKind::llama3: return "llama3";
    case RopeKind::yarn: return "yarn";
  }
  return "unknown";
}

void validate(const ModelConfig& config) {
  // Wide enough for every model there is, and the parameters together stay inside 64 bits.
  check_range("vocab_size", config.vocab, 1, (std::int64_t{1} << 31) - 1);
  check_range("hidden_size", config.hidden, 1, std::int64_t{1} << 20);
  check_range("num_hidden_layers", config.layers, 1, 10'000);
  check_range("num_attention_heads", config.heads_q, 1, 65'536);
  check_range("num_key_value_heads", config.heads_kv, 1, config.heads_q);
  check_range("intermediate_size", config.mlp, 1, std::int64_t{1} << 24);
  check_range("max_position_embeddings", config.max_positions, 1, kMaxPositions);
  check_key(config.head_dim >= 8 && config.head_dim <= 256 && config.head_dim % 8 == 0, "head_dim",
            "is {}; accepted: a multiple of 8 from 8 to 256", config.head_dim);
  check_key(config.heads_q % config.heads_kv == 0, "num_key_value_heads",
            "is {}; accepted: what divides num_attention_heads, {}", config.heads_kv, config.heads_q);
  check_key(!family_row(config.family).heads_divide_hidden || config.hidden % config.heads_q == 0,
            "num_attention_heads", "is {}; accepted in a {}: what divides hidden_size, {}", config.heads_q,
            name(config.family), config.hidden);
  check_range("rms_norm_eps", config.rms_epsilon, 0.0, 1.0);
  if (config.pad_token) check_range("pad_token_id", *config.pad_token, 0, config.vocab - 1);
  validate_rope(config.rope);
  validate_window(config);
}

std::string to_json(const ModelConfig& config, DType weights) {
  validate(config);
  const FamilyRow& family = family_row(config.family);
  nlohmann::ordered_json json = {
      {"architectures", {family.architecture}},
      {"model_type", family.model_type},
      {"torch_dtype", torch_name(weights)},
      {"vocab_size", config.vocab},
      {"hidden_size", config.hidden},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads_q},
      {"num_key_value_heads", config.heads_kv},
      {"head_dim", config.head_dim},
      {"intermediate_size", config.mlp},
      {"hidden_act", activation_name(family.mlp)},
      {"rms_norm_eps", config.rms_epsilon},
      {"tie_word_embeddings", config.tied_embeddings},
      {"pad_token_id", nullptr},
      {"attention_bias", false},
      {"max_position_embeddings", config.max_positions},
      {"rope_theta", config.rope.theta},
  };
  if (config.pad_token) json["pad_token_id"] = *config.pad_token;
  // transformers up to 4 reads rope_theta and rope_scaling, 5 reads rope_parameters.
  if (config.rope.kind != RopeKind::none) json["rope_scaling"] = rope_settings(config.rope);
  json["rope_parameters"] = rope_settings(config.rope);
  json["rope_parameters"]["rope_theta"] = config.rope.theta;
  if (family.slides) json["use_sliding_window"] = config.sliding_window > 0;
  if (config.sliding_window > 0) {
    json["sliding_window"] = config.sliding_window;
    json["max_window_layers"] = first_sliding(config);
    for (const AttentionKind kind : config.layer_attention) {
      json["layer_types"].push_back(kind == AttentionKind::sliding ? "sliding_attention" : "full_attention");
    }
  }
  return to_text(json, "config.json");
}

}  // namespace headroom
