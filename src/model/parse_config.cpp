#include "model/parse_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "headroom/core/error.h"
#include "model/config_keys.h"
#include "model/family.h"

namespace headroom {
namespace {

std::int64_t integer_or(const JsonReader& json, std::string_view key, std::int64_t standard) {
  return json.has(key) ? json.integer(key) : standard;
}

void parse_heads(const JsonReader& json, const ConfigDefaults& defaults, ModelConfig& config) {
  config.heads_q = integer_or(json, "num_attention_heads", defaults.heads_q);
  config.heads_kv = defaults.heads_kv.value_or(config.heads_q);
  if (json.has("num_key_value_heads")) {  // null: as many as there are query heads, whatever the default
    config.heads_kv = json.maybe_integer("num_key_value_heads").value_or(config.heads_q);
  }
  if (const auto head_dim = json.maybe_integer("head_dim")) {
    config.head_dim = *head_dim;
  } else if (defaults.head_dim) {
    config.head_dim = *defaults.head_dim;
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
  if (config.family == ModelFamily::llama) {
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

// The kind of attention of every layer.
std::vector<AttentionKind> parse_layer_types(const JsonReader& json, const Json& types,
                                             const ModelConfig& config, bool has_window) {
  if (std::ssize(types) != config.layers) {
    json.refuse("layer_types", fmt::format("a list of {}, one a layer", config.layers));
  }
  const std::string where = has_window                         ? ""
                            : family_row(config.family).slides ? " without a window"
                                                               : fmt::format(" in a {}", name(config.family));
  std::vector<AttentionKind> kinds(types.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool sliding = types[i] == "sliding_attention";
    const bool full = types[i] == "full_attention" || types[i] == "attention";  // the second of older files
    check(full || (sliding && has_window),
          "{}: layer_types has {} for layer {}; accepted{}: \"full_attention\"{}", json.source(),
          shown(types[i]), i, where, has_window ? ", \"sliding_attention\"" : "");
    kinds[i] = sliding ? AttentionKind::sliding : AttentionKind::full;
  }
  return kinds;
}

void parse_window(const JsonReader& json, const FamilyRow& family, ModelConfig& config) {
  const ConfigDefaults& defaults = family.defaults;
  std::optional<std::int64_t> window;
  if (family.slides && json.maybe_boolean("use_sliding_window").value_or(false)) {
    window = json.has("sliding_window") ? json.maybe_integer("sliding_window") : defaults.sliding_window;
  }
  std::vector<AttentionKind> kinds(static_cast<std::size_t>(config.layers));
  if (const Json* types = json.find("layer_types")) {
    kinds = parse_layer_types(json, *types, config, window.has_value());
  } else if (window) {
    const std::int64_t first = integer_or(json, "max_window_layers", defaults.max_window_layers);
    for (std::int64_t i = std::max<std::int64_t>(first, 0); i < config.layers; ++i) {
      kinds[static_cast<std::size_t>(i)] = AttentionKind::sliding;
    }
  }
  if (!window || std::ranges::find(kinds, AttentionKind::sliding) == kinds.end()) return;
  if (*window < 1 || *window > kMaxPositions)
    json.refuse("sliding_window", fmt::format("1 to {}", kMaxPositions));
  config.sliding_window = *window;
  config.layer_attention = std::move(kinds);
}

// validate(), with the file's name before the message and a word after it where the value is not the file's.
void validate_file(const JsonReader& json, const ModelConfig& config) {
  try {
    validate(config);
  } catch (const KeyError& error) {
    const bool standard = find_config_key(error.key(), config.family) != nullptr && !json.has(error.key());
    const std::string note =
        standard ? fmt::format(" ({} is not in the file, and this is its default)", error.key()) : "";
    throw Error(error.kind(), fmt::format("{}: {}{}", json.source(), error.what(), note), error.where());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", json.source(), error.what()), error.where());
  }
}

const FamilyRow& parse_family(const JsonReader& json) {
  const std::string type = json.text("model_type");
  std::vector<std::string> accepted;
  for (const FamilyRow& family : model_families()) {
    if (family.model_type == type) return family;
    accepted.push_back(fmt::format("\"{}\"", family.model_type));
  }
  json.refuse("model_type", fmt::format("{}", fmt::join(accepted, " or ")));
}

}  // namespace

ParsedConfig parse_config_file(std::string_view text, std::string_view source) {
  const Json object = parse_json_object(text, source);
  const JsonReader json(object, std::string(source));
  const FamilyRow& family = parse_family(json);
  const ConfigDefaults& defaults = family.defaults;

  ParsedConfig parsed{.config = {}, .ignored = check_config_keys(json, family.family)};
  ModelConfig& config = parsed.config;
  config.family = family.family;
  config.vocab = integer_or(json, "vocab_size", defaults.vocab);
  config.hidden = integer_or(json, "hidden_size", defaults.hidden);
  config.layers = integer_or(json, "num_hidden_layers", defaults.layers);
  config.mlp = integer_or(json, "intermediate_size", defaults.mlp);
  config.max_positions = integer_or(json, "max_position_embeddings", defaults.max_positions);
  config.rms_epsilon = json.maybe_number("rms_norm_eps").value_or(defaults.rms_epsilon);
  config.tied_embeddings = json.maybe_boolean("tie_word_embeddings").value_or(false);
  parse_heads(json, defaults, config);
  config.rope = parse_rope(json, config.max_positions, parsed.ignored);
  validate_file(json, config);
  // These have to do with numbers that are sane by now.
  parse_pad_token(json, config);
  parse_window(json, family, config);
  check_as_transformers(json, config);
  if (!family.slides && json.find("sliding_window") != nullptr) parsed.ignored.emplace_back("sliding_window");
  return parsed;
}

ModelConfig parse_model_config(std::string_view text, std::string_view source) {
  return parse_config_file(text, source).config;
}

}  // namespace headroom
