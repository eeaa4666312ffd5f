#include "model/parse_config.h"

#include <algorithm>

#include "headroom/core/error.h"
#include "model/config_keys.h"

namespace headroom {
namespace {

// What transformers takes for a key that is not in the file.
struct Defaults {
  std::int64_t vocab;
  std::int64_t mlp;
  std::int64_t max_positions;
  std::int64_t hidden = 4096;
  std::int64_t layers = 32;
  std::int64_t heads_q = 32;
  std::int64_t heads_kv = 32;   // qwen3; a llama's are as many as its heads
  std::int64_t head_dim = 128;  // qwen3; a llama's is hidden_size over heads
  std::int64_t sliding_window = 4096;
  std::int64_t max_window_layers = 28;
  double rms_epsilon = 1e-6;
};
constexpr Defaults kQwen3Defaults{.vocab = 151'936, .mlp = 22'016, .max_positions = 32'768};
constexpr Defaults kLlamaDefaults{.vocab = 32'000, .mlp = 11'008, .max_positions = 2'048};

std::int64_t integer_or(const JsonReader& json, std::string_view key, std::int64_t standard) {
  return json.has(key) ? json.integer(key) : standard;
}

void parse_heads(const JsonReader& json, const Defaults& defaults, ModelConfig& config) {
  config.heads_q = integer_or(json, "num_attention_heads", defaults.heads_q);
  const bool given = json.has("num_key_value_heads") || !config.qk_norm;
  config.heads_kv =
      given ? json.maybe_integer("num_key_value_heads").value_or(config.heads_q) : defaults.heads_kv;
  if (config.qk_norm) {
    config.head_dim = integer_or(json, "head_dim", defaults.head_dim);
  } else if (const auto head_dim = json.maybe_integer("head_dim")) {
    config.head_dim = *head_dim;
  } else {
    check(config.heads_q > 0 && config.hidden % config.heads_q == 0,
          "{}: num_attention_heads is {}; accepted without head_dim: what divides hidden_size, {}",
          json.source(), config.heads_q, config.hidden);
    config.head_dim = config.hidden / config.heads_q;
  }
}

// As torch counts rows: negative ones from the end.
void parse_pad_token(const JsonReader& json, ModelConfig& config) {
  const auto token = json.maybe_integer("pad_token_id");
  if (!token) return;
  if (*token >= config.vocab || *token < -config.vocab) {
    json.refuse("pad_token_id", fmt::format("{} to {}", -config.vocab, config.vocab - 1));
  }
  config.pad_token = *token < 0 ? *token + config.vocab : *token;
}

// Checks that transformers makes and that nothing else here depends on.
void check_as_transformers(const JsonReader& json, const ModelConfig& config) {
  if (!config.qk_norm) {
    const double deviation = json.maybe_number("initializer_range").value_or(0);
    if (!(deviation >= 0 && deviation <= 1)) json.refuse("initializer_range", "0.0 to 1.0");
  } else if (json.has("num_heads") && json.has("embed_dim")) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(config.head_dim, json.integer("num_heads"), &product)) {
      json.refuse("num_heads", "what fits in 64 bits times head_dim");
    }
    if (json.integer("embed_dim") != product) {
      json.refuse("embed_dim", fmt::format("{}, head_dim times num_heads", product));
    }
  }
}

// Which layers slide, one entry a layer.
std::vector<bool> parse_layer_types(const JsonReader& json, const Json& types, const ModelConfig& config,
                                    bool has_window) {
  if (std::ssize(types) != config.layers) {
    json.refuse("layer_types", fmt::format("a list of {}, one a layer", config.layers));
  }
  std::vector<bool> sliding(types.size());
  for (std::size_t i = 0; i < sliding.size(); ++i) {
    sliding[i] = types[i] == "sliding_attention";
    const bool full = types[i] == "full_attention" || types[i] == "attention";  // the second of older files
    check(full || (sliding[i] && has_window),
          "{}: layer_types has {} for layer {}; accepted{}: \"full_attention\"{}", json.source(),
          shown(types[i]), i,
          has_window       ? ""
          : config.qk_norm ? " without a window"
                           : " in a llama",
          has_window ? ", \"sliding_attention\"" : "");
  }
  return sliding;
}

void parse_window(const JsonReader& json, const Defaults& defaults, ModelConfig& config) {
  std::optional<std::int64_t> window;
  if (config.qk_norm && json.maybe_boolean("use_sliding_window").value_or(false)) {
    window = json.has("sliding_window") ? json.maybe_integer("sliding_window") : defaults.sliding_window;
  }
  std::vector<bool> sliding(static_cast<std::size_t>(config.layers));
  if (const Json* types = json.find("layer_types")) {
    sliding = parse_layer_types(json, *types, config, window.has_value());
  } else if (window) {
    const std::int64_t first = integer_or(json, "max_window_layers", defaults.max_window_layers);
    for (std::int64_t i = std::max<std::int64_t>(first, 0); i < config.layers; ++i) {
      sliding[static_cast<std::size_t>(i)] = true;
    }
  }
  if (!window || std::ranges::find(sliding, true) == sliding.end()) return;
  if (*window < 1 || *window > kMaxPositions)
    json.refuse("sliding_window", fmt::format("1 to {}", kMaxPositions));
  config.sliding_window = *window;
  config.sliding_layers = std::move(sliding);
}

// validate(), with the file's name before the message and a word after it where the value is not the file's.
void validate_file(const JsonReader& json, const ModelConfig& config, ModelFamily family) {
  try {
    validate(config);
  } catch (const KeyError& error) {
    const bool standard = find_config_key(error.key(), family) != nullptr && !json.has(error.key());
    const std::string note =
        standard ? fmt::format(" ({} is not in the file, and this is its default)", error.key()) : "";
    throw Error(error.kind(), fmt::format("{}: {}{}", json.source(), error.what(), note), error.where());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", json.source(), error.what()), error.where());
  }
}

}  // namespace

ParsedConfig parse_config_file(std::string_view text, std::string_view source) {
  const Json object = parse_json_object(text, source);
  const JsonReader json(object, std::string(source));
  const std::string type = json.text("model_type");
  if (type != "qwen3" && type != "llama") json.refuse("model_type", "\"qwen3\" or \"llama\"");
  const bool qwen3 = type == "qwen3";
  const ModelFamily family = qwen3 ? ModelFamily::qwen3 : ModelFamily::llama;
  const Defaults& defaults = qwen3 ? kQwen3Defaults : kLlamaDefaults;

  ParsedConfig parsed{.config = {}, .ignored = check_config_keys(json, family)};
  ModelConfig& config = parsed.config;
  config.qk_norm = qwen3;
  config.vocab = integer_or(json, "vocab_size", defaults.vocab);
  config.hidden = integer_or(json, "hidden_size", defaults.hidden);
  config.layers = integer_or(json, "num_hidden_layers", defaults.layers);
  config.mlp = integer_or(json, "intermediate_size", defaults.mlp);
  config.max_positions = integer_or(json, "max_position_embeddings", defaults.max_positions);
  config.rms_epsilon = json.maybe_number("rms_norm_eps").value_or(defaults.rms_epsilon);
  config.tied_embeddings = json.maybe_boolean("tie_word_embeddings").value_or(false);
  parse_heads(json, defaults, config);
  config.rope = parse_rope(json, config.max_positions, parsed.ignored);
  validate_file(json, config, family);
  // These have to do with numbers that are sane by now.
  parse_pad_token(json, config);
  parse_window(json, defaults, config);
  check_as_transformers(json, config);
  if (!qwen3 && json.find("sliding_window") != nullptr) parsed.ignored.emplace_back("sliding_window");
  return parsed;
}

ModelConfig parse_model_config(std::string_view text, std::string_view source) {
  return parse_config_file(text, source).config;
}

}  // namespace headroom
