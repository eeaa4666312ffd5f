// Rope as transformers reads it: rope_scaling, where it says anything, or else rope_parameters; what is not
// in there is taken from beside it.
#include <array>
#include <cmath>

#include "headroom/core/error.h"
#include "model/config_keys.h"
#include "model/parse_config.h"

namespace headroom {
namespace {

constexpr std::array kKinds = {RopeKind::none, RopeKind::linear, RopeKind::llama3, RopeKind::yarn};
constexpr double kDefaultTheta = 10'000;
constexpr std::string_view kOriginal = "original_max_position_embeddings";

// The kind comes first, so that one that is not there is refused by its name whatever else is said of it.
RopeKind parse_kind(const JsonReader& rope) {
  const std::string_view key = rope.has("rope_type") ? "rope_type" : "type";  // of older files
  if (!rope.has(key)) return RopeKind::none;
  const std::string text = rope.maybe_text(key).value_or("");
  for (const RopeKind kind : kKinds) {
    if (name(kind) == text) return kind;
  }
  rope.refuse(key, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
}

double parse_theta(const JsonReader& rope, const JsonReader& config) {
  if (rope.has("rope_theta")) return rope.number("rope_theta");
  return config.has("rope_theta") ? config.number("rope_theta") : kDefaultTheta;
}

// What is said outside counts more; a null is refused wherever it is.
std::int64_t parse_original(const JsonReader& rope, const JsonReader& config, std::int64_t max_positions) {
  std::int64_t positions = max_positions;
  for (const JsonReader* said : {&rope, &config}) {
    if (!said->has(kOriginal)) continue;
    positions = said->integer(kOriginal);
    if (positions < 1) said->refuse(kOriginal, fmt::format("1 to {}", kMaxPositions));
  }
  return positions;
}

void check_partial(const JsonReader& rope, const JsonReader& config) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  const bool inside = rope.has(kKey);
  if (!inside && config.find(kKey) == nullptr) return;
  const JsonReader& said = inside ? rope : config;
  if (said.number(kKey) != 1) said.refuse(kKey, "1");
}

// The attention factor of files that give it as two exponents.
std::optional<double> factor_from_mscale(const JsonReader& rope, double factor) {
  const double mscale = rope.maybe_number("mscale").value_or(0);
  const double all_dimensions = rope.maybe_number("mscale_all_dim").value_or(0);
  if (mscale == 0 || all_dimensions == 0 || factor <= 1) return std::nullopt;
  return (0.1 * mscale * std::log(factor) + 1) / (0.1 * all_dimensions * std::log(factor) + 1);
}

void parse_yarn(const JsonReader& rope, std::int64_t max_positions, RopeSettings& settings) {
  const auto or_default = [&](std::string_view key, double standard) {
    const double value = rope.maybe_number(key).value_or(0);
    return value == 0 ? standard : value;  // 0 counts as not given
  };
  if (!rope.has("factor")) rope.refuse("factor", "a number, or null");
  settings.factor = rope.maybe_number("factor").value_or(static_cast<double>(max_positions) /
                                                         static_cast<double>(settings.original_positions));
  settings.beta_fast = or_default("beta_fast", settings.beta_fast);
  settings.beta_slow = or_default("beta_slow", settings.beta_slow);
  if (rope.has("truncate")) settings.truncate = rope.maybe_boolean("truncate").value_or(false);
  settings.attention_factor = rope.maybe_number("attention_factor");
  if (!settings.attention_factor) settings.attention_factor = factor_from_mscale(rope, settings.factor);
}

RopeSettings parse_settings(const JsonReader& rope, const JsonReader& config, std::int64_t max_positions) {
  RopeSettings settings{.kind = parse_kind(rope)};
  for (const std::string_view layers : {"full_attention", "sliding_attention"}) {
    if (rope.has(layers)) rope.refuse(layers, "one rope for every layer");
  }
  settings.theta = parse_theta(rope, config);
  if (settings.kind == RopeKind::none) return settings;
  check_partial(rope, config);
  if (settings.kind != RopeKind::yarn) settings.factor = rope.number("factor");
  if (settings.kind == RopeKind::linear) return settings;
  settings.original_positions = parse_original(rope, config, max_positions);
  if (settings.kind == RopeKind::llama3) {
    settings.low_frequency_factor = rope.number("low_freq_factor");
    settings.high_frequency_factor = rope.number("high_freq_factor");
  } else {
    parse_yarn(rope, max_positions, settings);
  }
  return settings;
}

}  // namespace

RopeSettings parse_rope(const JsonReader& config, std::int64_t max_positions,
                        std::vector<std::string>& ignored) {
  const auto reader = [&](std::string_view key) {
    static const Json kNothing = Json::object();
    const Json* value = config.find(key);
    return JsonReader(value == nullptr ? kNothing : *value, fmt::format("{}: {}", config.source(), key));
  };
  const JsonReader scaling = reader("rope_scaling");
  const JsonReader parameters = reader("rope_parameters");
  const bool older = !scaling.object().empty();
  const JsonReader& rope = older ? scaling : parameters;
  const RopeSettings settings = parse_settings(rope, config, max_positions);

  for (const auto& [key, value] : rope.object().items()) {
    if (!uses(settings.kind, key) && !value.is_null()) {
      ignored.push_back(fmt::format("{}.{}", older ? "rope_scaling" : "rope_parameters", key));
    }
  }
  const auto outside = [&](std::string_view key, bool used) {
    if (!used && config.find(key) != nullptr) ignored.emplace_back(key);
  };
  const bool scaled = settings.kind != RopeKind::none;
  const auto theta = config.maybe_number("rope_theta");
  outside("rope_theta", !theta || *theta == settings.theta);
  outside("partial_rotary_factor", scaled);
  outside(kOriginal, scaled && settings.kind != RopeKind::linear);
  if (older && config.find("rope_parameters") != nullptr) {
    // Files that say the same in both forms are common, and nothing of them is lost.
    bool same = false;
    try {
      same = parse_settings(parameters, config, max_positions) == settings;
    } catch (const Error&) {
    }
    outside("rope_parameters", same);
  }
  return settings;
}

}  // namespace headroom
