#include "headroom/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "headroom/core/error.h"
#include "model/json.h"

namespace headroom {
namespace {

constexpr std::array kScalings = {RopeKind::none, RopeKind::linear, RopeKind::llama3, RopeKind::yarn};

// The keys that mean something to one kind of rope or another. A key beyond them would change the frequencies
// in a way that is not known here.
constexpr std::array<std::string_view, 15> kRopeKeys = {"rope_type",
                                                        "type",
                                                        "rope_theta",
                                                        "factor",
                                                        "original_max_position_embeddings",
                                                        "low_freq_factor",
                                                        "high_freq_factor",
                                                        "beta_fast",
                                                        "beta_slow",
                                                        "truncate",
                                                        "attention_factor",
                                                        "mscale",
                                                        "mscale_all_dim",
                                                        "partial_rotary_factor",
                                                        "finetuned"};

void check_range(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) {
  check(value >= least && value <= most, "{} is {}; accepted: {} to {}", key, value, least, most);
}

// Written so that NaN fails.
void check_range(std::string_view key, double value, double above, double most) {
  check(value > above && value <= most, "{} is {}; accepted: over {} up to {}", key, value, above, most);
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

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;
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
    check(rope.beta_fast >= rope.beta_slow && rope.beta_fast <= kMaxFactor,
          "beta_fast is {}; accepted: beta_slow, {}, up to {}", rope.beta_fast, rope.beta_slow, kMaxFactor);
    if (rope.attention_factor) check_range("attention_factor", *rope.attention_factor, 0.0, kMaxFactor);
  }
}

void validate_window(const ModelConfig& config) {
  check_range("sliding_window", config.sliding_window, 0, kMaxPositions);
  if (config.sliding_window == 0) {
    check(config.sliding_layers.empty(), "sliding_window is 0 and {} layers are listed; accepted: none",
          config.sliding_layers.size());
    return;
  }
  check(config.qk_norm, "sliding_window is {}; accepted: a llama model has none", config.sliding_window);
  check(std::ssize(config.sliding_layers) == config.layers,
        "layer_types has {} entries; accepted: {}, one a layer", config.sliding_layers.size(), config.layers);
  check(std::ranges::find(config.sliding_layers, true) != config.sliding_layers.end(),
        "sliding_window is {} and no layer slides; accepted: 0", config.sliding_window);
}

RopeKind parse_scaling(const JsonReader& json) {
  // Older files say "type".
  const std::string_view key = json.find("rope_type") == nullptr ? "type" : "rope_type";
  const std::string text = json.maybe_text(key).value_or("default");
  for (const RopeKind scaling : kScalings) {
    if (name(scaling) == text) return scaling;
  }
  json.refuse(key, "default, linear, llama3 or yarn");
}

// The attention factor of files that give it as two exponents.
std::optional<double> factor_from_mscale(const JsonReader& json, double factor) {
  const double mscale = json.maybe_number("mscale").value_or(0);
  const double all_dimensions = json.maybe_number("mscale_all_dim").value_or(0);
  if (mscale == 0 || all_dimensions == 0 || factor <= 1) return std::nullopt;
  return (0.1 * mscale * std::log(factor) + 1) / (0.1 * all_dimensions * std::log(factor) + 1);
}

// One dictionary of rope settings. `theta` and `original` are what the file says outside of it.
RopeSettings parse_rope(const JsonReader& json, const Json& object, std::int64_t max_positions, double theta,
                        std::optional<std::int64_t> original) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kRopeKeys, key) == kRopeKeys.end()) json.refuse(key, "no such key");
  }
  if (json.maybe_number("partial_rotary_factor").value_or(1) != 1) json.refuse("partial_rotary_factor", "1");
  RopeSettings rope{.theta = json.maybe_number("rope_theta").value_or(theta), .kind = parse_scaling(json)};
  if (rope.kind == RopeKind::none) return rope;
  if (rope.kind != RopeKind::linear) {
    const auto positions = json.maybe_integer("original_max_position_embeddings");
    if (rope.kind == RopeKind::llama3 && !positions && !original) {
      json.refuse("original_max_position_embeddings", "the positions of pretraining");
    }
    if (positions && original && *positions != *original) {
      json.refuse("original_max_position_embeddings", fmt::format("{}, as outside", *original));
    }
    rope.original_positions = positions.value_or(original.value_or(max_positions));
  }
  if (rope.kind == RopeKind::yarn && json.find("factor") == nullptr && rope.original_positions > 0) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
  } else {
    rope.factor = json.number("factor");
  }
  if (rope.kind == RopeKind::llama3) {
    rope.low_frequency_factor = json.number("low_freq_factor");
    rope.high_frequency_factor = json.number("high_freq_factor");
  }
  if (rope.kind == RopeKind::yarn) {
    rope.beta_fast = json.maybe_number("beta_fast").value_or(rope.beta_fast);
    rope.beta_slow = json.maybe_number("beta_slow").value_or(rope.beta_slow);
    rope.truncate = json.maybe_boolean("truncate").value_or(true);
    rope.attention_factor = json.maybe_number("attention_factor");
    if (!rope.attention_factor) rope.attention_factor = factor_from_mscale(json, rope.factor);
  }
  return rope;
}

RopeSettings parse_ropes(const JsonReader& json, std::int64_t max_positions) {
  const auto original = json.maybe_integer("original_max_position_embeddings");
  const auto outer_theta = json.maybe_number("rope_theta");
  const auto read = [&](std::string_view key) -> std::optional<RopeSettings> {
    const Json* value = json.find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) json.refuse(key, "an object");
    // Not given anywhere, theta is 10,000: so transformers reads it.
    return parse_rope(JsonReader(*value, fmt::format("{}: {}", json.source(), key)), *value, max_positions,
                      outer_theta.value_or(10'000), original);
  };
  const auto scaling = read("rope_scaling");
  const auto parameters = read("rope_parameters");
  if (scaling && parameters) {
    check(*scaling == *parameters,
          "{}: rope_scaling and rope_parameters differ; accepted: either, or both alike", json.source());
  }
  if (parameters && outer_theta) {
    check(parameters->theta == *outer_theta, "{}: rope_theta is {}; accepted: {}, as rope_parameters say",
          json.source(), *outer_theta, parameters->theta);
  }
  if (scaling) return *scaling;
  if (parameters) return *parameters;
  return {.theta = outer_theta.value_or(10'000)};
}

// What would change the arithmetic and is not there.
void refuse_unsupported(const JsonReader& json) {
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    if (json.maybe_boolean(key).value_or(false)) json.refuse(key, "false");
  }
  if (json.maybe_text("hidden_act").value_or("silu") != "silu") json.refuse("hidden_act", "\"silu\"");
  if (json.maybe_number("attention_dropout").value_or(0) != 0) json.refuse("attention_dropout", "0");
  if (json.maybe_number("partial_rotary_factor").value_or(1) != 1) json.refuse("partial_rotary_factor", "1");
  if (json.find("quantization_config") != nullptr) {
    json.refuse("quantization_config", "none: the weights have to be F32, BF16 or F16");
  }
}

void parse_window(const JsonReader& json, ModelConfig& config) {
  const auto window = json.maybe_integer("sliding_window");
  if (!config.qk_norm) {
    if (window) json.refuse("sliding_window", "none: a llama model has no window");
    return;
  }
  if (!json.maybe_boolean("use_sliding_window").value_or(false) || !window) return;
  std::vector<bool> sliding(static_cast<std::size_t>(config.layers));
  if (const Json* types = json.find("layer_types")) {
    if (!types->is_array() || std::ssize(*types) != config.layers) {
      json.refuse("layer_types", fmt::format("a list of {}, one a layer", config.layers));
    }
    for (std::size_t i = 0; i < sliding.size(); ++i) {
      sliding[i] = (*types)[i] == "sliding_attention";
      check(sliding[i] || (*types)[i] == "full_attention",
            "{}: layer_types has {} for layer {}; accepted: \"full_attention\", \"sliding_attention\"",
            json.source(), shown((*types)[i]), i);
    }
  } else {
    const std::int64_t first = json.integer("max_window_layers");
    if (first < 0) json.refuse("max_window_layers", "0 and more");
    for (std::int64_t i = first; i < config.layers; ++i) sliding[static_cast<std::size_t>(i)] = true;
  }
  if (std::ranges::find(sliding, true) == sliding.end()) return;
  if (*window < 1 || *window > kMaxPositions) {
    json.refuse("sliding_window", fmt::format("1 to {}", kMaxPositions));
  }
  config.sliding_window = *window;
  config.sliding_layers = std::move(sliding);
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
  check(config.head_dim >= 8 && config.head_dim <= 256 && config.head_dim % 8 == 0,
        "head_dim is {}; accepted: a multiple of 8 from 8 to 256", config.head_dim);
  check(config.heads_q % config.heads_kv == 0,
        "num_key_value_heads is {}; accepted: what divides num_attention_heads, {}", config.heads_kv,
        config.heads_q);
  // transformers refuses such a llama even where head_dim is given.
  check(config.qk_norm || config.hidden % config.heads_q == 0,
        "num_attention_heads is {}; accepted in a llama: what divides hidden_size, {}", config.heads_q,
        config.hidden);
  check_range("rms_norm_eps", config.rms_epsilon, 0.0, 0.1);
  validate_rope(config.rope);
  validate_window(config);
}

ModelConfig parse_model_config(std::string_view text, std::string_view source) {
  const Json object = parse_json_object(text, source);
  const JsonReader json(object, std::string(source));
  const std::string type = json.text("model_type");
  if (type != "qwen3" && type != "llama") json.refuse("model_type", "\"qwen3\" or \"llama\"");
  refuse_unsupported(json);
  ModelConfig config;
  config.qk_norm = type == "qwen3";
  config.vocab = json.integer("vocab_size");
  config.hidden = json.integer("hidden_size");
  config.layers = json.integer("num_hidden_layers");
  config.heads_q = json.integer("num_attention_heads");
  config.heads_kv = json.maybe_integer("num_key_value_heads").value_or(config.heads_q);
  config.mlp = json.integer("intermediate_size");
  config.max_positions = json.integer("max_position_embeddings");
  config.rms_epsilon = json.maybe_number("rms_norm_eps").value_or(1e-6);
  config.tied_embeddings = json.maybe_boolean("tie_word_embeddings").value_or(false);
  if (const auto head_dim = json.maybe_integer("head_dim")) {
    config.head_dim = *head_dim;
  } else if (config.qk_norm) {
    json.refuse("head_dim", "a multiple of 8 from 8 to 256");  // Qwen3's is not hidden_size over heads
  } else {
    check(config.heads_q > 0 && config.hidden % config.heads_q == 0,
          "{}: num_attention_heads is {}; accepted without head_dim: what divides hidden_size, {}", source,
          config.heads_q, config.hidden);
    config.head_dim = config.hidden / config.heads_q;
  }
  config.rope = parse_ropes(json, config.max_positions);
  try {
    validate(config);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", source, error.what()), error.where());
  }
  parse_window(json, config);  // makes a list of layers, so their number has to be a sane one by now
  return config;
}

std::string to_json(const ModelConfig& config, DType weights) {
  validate(config);
  nlohmann::ordered_json json = {
      {"architectures", {config.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
      {"model_type", config.qk_norm ? "qwen3" : "llama"},
      {"torch_dtype", torch_name(weights)},
      {"vocab_size", config.vocab},
      {"hidden_size", config.hidden},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads_q},
      {"num_key_value_heads", config.heads_kv},
      {"head_dim", config.head_dim},
      {"intermediate_size", config.mlp},
      {"hidden_act", "silu"},
      {"rms_norm_eps", config.rms_epsilon},
      {"tie_word_embeddings", config.tied_embeddings},
      {"attention_bias", false},
      {"max_position_embeddings", config.max_positions},
      {"rope_theta", config.rope.theta},
  };
  // transformers up to 4 reads rope_theta and rope_scaling, 5 reads rope_parameters.
  if (config.rope.kind != RopeKind::none) json["rope_scaling"] = rope_settings(config.rope);
  json["rope_parameters"] = rope_settings(config.rope);
  json["rope_parameters"]["rope_theta"] = config.rope.theta;
  if (config.qk_norm) json["use_sliding_window"] = config.sliding_window > 0;
  if (config.sliding_window > 0) {
    json["sliding_window"] = config.sliding_window;
    const auto first = std::ranges::find(config.sliding_layers, true);
    json["max_window_layers"] = first - config.sliding_layers.begin();
    for (const bool slides : config.sliding_layers) {
      json["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
    }
  }
  return to_text(json, "config.json");
}

}  // namespace headroom
