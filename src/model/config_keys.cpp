#include "model/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "headroom/core/error.h"

namespace headroom {
namespace {

using enum KeyRole;
using namespace json_type;

constexpr std::uint8_t family_bit(ModelFamily family) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(family));
}
constexpr std::uint8_t kQwen3 = family_bit(ModelFamily::qwen3);
constexpr std::uint8_t kLlama = family_bit(ModelFamily::llama);
constexpr std::string_view kNone = "[null]";
constexpr std::string_view kNowhere = "[]";  // the key must not be there
constexpr std::string_view kFloatTypes =
    R"([null, "float32", "float", "bfloat16", "float16", "half", "float64", "double"])";

constexpr std::array kKeys = {
    // The model's shape.
    ConfigKey{"model_type", used, text},
    ConfigKey{"vocab_size", used, whole},
    ConfigKey{"hidden_size", used, whole},
    ConfigKey{"intermediate_size", used, whole},
    ConfigKey{"num_hidden_layers", used, whole},
    ConfigKey{"num_attention_heads", used, whole},
    ConfigKey{"num_key_value_heads", used, whole | null},
    ConfigKey{"head_dim", used, whole, {}, kQwen3},
    ConfigKey{"head_dim", used, whole | null, {}, kLlama},
    ConfigKey{"rms_norm_eps", used, real},
    ConfigKey{"tie_word_embeddings", used, boolean},
    ConfigKey{"pad_token_id", used, whole | null},
    ConfigKey{"max_position_embeddings", used, whole},
    // Qwen3 refuses the two together where they do not fit head_dim.
    ConfigKey{"num_heads", used, any, {}, kQwen3},
    ConfigKey{"embed_dim", used, any, {}, kQwen3},

    // Positions. rope_scaling and the keys below it are older forms of what is in rope_parameters.
    ConfigKey{"rope_parameters", used, object | null},
    ConfigKey{"rope_scaling", used, object | null},
    ConfigKey{"rope_theta", used, whole | real},
    ConfigKey{"partial_rotary_factor", used, whole | real | null},
    ConfigKey{"original_max_position_embeddings", used},

    // Windows. A llama has none, whatever is said of one.
    ConfigKey{"use_sliding_window", used, boolean, {}, kQwen3},
    ConfigKey{"sliding_window", used, whole | null, {}, kQwen3},
    ConfigKey{"sliding_window", does_not_change_training, whole | null, {}, kLlama},
    ConfigKey{"max_window_layers", used, whole, {}, kQwen3},
    ConfigKey{"layer_types", used, text_list | null},
    ConfigKey{"attention_chunk_size", does_not_change_training, whole | null, {}, kLlama},

    // Arithmetic that is not there.
    ConfigKey{"hidden_act", must_have_value, text, R"(["silu", "swish"])"},
    ConfigKey{"attention_bias", must_have_value, boolean, "[false]"},
    ConfigKey{"mlp_bias", must_have_value, boolean, "[false]", kLlama},
    ConfigKey{"attention_dropout", must_have_value, whole | real, "[0]", kQwen3},
    ConfigKey{"attention_dropout", must_have_value, whole | real | null, "[0]", kLlama},
    ConfigKey{"is_causal", must_have_value, any, "[true]"},
    ConfigKey{"per_layer_config", must_have_value, any, kNone},
    ConfigKey{"mlp_layer_types", must_have_value, any, kNone},
    ConfigKey{"num_kv_shared_layers", must_have_value, any, "[null, 0]"},
    ConfigKey{"is_encoder_decoder", must_have_value, any, "[null, false]"},
    ConfigKey{"quantization_config", must_have_value, any, kNone, kEveryFamily,
              "the weights have to be F32, BF16, F16 or F64"},
    ConfigKey{"fusion_config", must_have_value, any, kNone},

    // Another file, or another part of this one, in its place.
    ConfigKey{"transformers_weights", must_have_value, any, kNone, kEveryFamily,
              "weights are read from model.safetensors or model.safetensors.index.json"},
    ConfigKey{"configuration_files", must_have_value, any, kNowhere, kEveryFamily,
              "config.json alone is read"},
    ConfigKey{"text_config", must_have_value, any, kNone},
    ConfigKey{"decoder", must_have_value, any, kNone},
    ConfigKey{"generator", must_have_value, any, kNone},

    // Attributes of the classes themselves: in a file they would change how the rest of it is read.
    ConfigKey{"attribute_map", must_have_value, any, kNowhere},
    ConfigKey{"sub_configs", must_have_value, any, kNowhere},
    ConfigKey{"sub_configs_defaults", must_have_value, any, kNone},
    ConfigKey{"base_config_key", must_have_value, any, kNone},
    ConfigKey{"base_model_tp_plan", must_have_value, any, kNone},
    ConfigKey{"base_model_pp_plan", must_have_value, any, kNone},
    ConfigKey{"base_model_ep_plan", must_have_value, any, kNone},
    ConfigKey{"base_model_fsdp_plan", must_have_value, any, kNone},
    ConfigKey{"default_theta", must_have_value, any, kNone},
    ConfigKey{"default_rope_type", must_have_value, any, kNone},
    ConfigKey{"ignore_keys_at_rope_validation", must_have_value, any, "[null, []]"},
    ConfigKey{"_rope_type_labels", must_have_value, any, kNone},
    ConfigKey{"_heterogeneity_spec", must_have_value, any, kNowhere},
    ConfigKey{"is_heterogeneous", must_have_value, any, kNowhere},
    ConfigKey{"per_layer_attributes", must_have_value, any, kNowhere},
    ConfigKey{"use_return_dict", must_have_value, any, kNowhere},
    ConfigKey{"return_dict", must_have_value, any, "[true]"},

    // The dtype of a run is its own setting, and not the file's.
    ConfigKey{"dtype", must_have_value, any, kFloatTypes},
    ConfigKey{"torch_dtype", must_have_value, any, kFloatTypes},

    // Weights are read from files: nothing is drawn at random.
    ConfigKey{"initializer_range", does_not_change_training, real},

    // How transformers computes, and what it returns besides the loss.
    ConfigKey{"use_cache", does_not_change_training, boolean},
    ConfigKey{"gradient_checkpointing", does_not_change_training},
    ConfigKey{"attn_implementation", does_not_change_training},
    ConfigKey{"experts_implementation", does_not_change_training},
    ConfigKey{"_attn_implementation", does_not_change_training},
    ConfigKey{"_attn_implementation_internal", does_not_change_training},
    ConfigKey{"_experts_implementation", does_not_change_training},
    ConfigKey{"_experts_implementation_internal", does_not_change_training},
    ConfigKey{"distributed_config", does_not_change_training},
    ConfigKey{"chunk_size_feed_forward", does_not_change_training},
    ConfigKey{"output_attentions", does_not_change_training},
    ConfigKey{"_output_attentions", does_not_change_training},
    ConfigKey{"output_hidden_states", does_not_change_training},
    ConfigKey{"keys_to_ignore_at_inference", does_not_change_training},
    ConfigKey{"allow_global_per_layer_attribute_access", does_not_change_training},
    ConfigKey{"serialize_explicit_per_layer_config", does_not_change_training},
    ConfigKey{"_post_init_done", does_not_change_training},
    // Products in several parts, in releases before this one.
    ConfigKey{"pretraining_tp", does_not_change_training, whole | null, {}, kLlama},

    // Where a file comes from. Code beside it (auto_map) is not run, as transformers does not run it unasked.
    ConfigKey{"architectures", does_not_change_training},
    ConfigKey{"transformers_version", does_not_change_training},
    ConfigKey{"auto_map", does_not_change_training, any & ~(null | boolean | whole | real)},
    ConfigKey{"_auto_class", does_not_change_training},
    ConfigKey{"name_or_path", does_not_change_training},
    ConfigKey{"_name_or_path", does_not_change_training},
    ConfigKey{"_commit_hash", does_not_change_training},

    // Other tasks.
    ConfigKey{"id2label", does_not_change_training, object | null},
    ConfigKey{"label2id", does_not_change_training},
    ConfigKey{"num_labels", does_not_change_training, whole},
    ConfigKey{"problem_type", does_not_change_training},
    ConfigKey{"mtp_layer_types", does_not_change_training, text_list | null},
    ConfigKey{"vision_aspect_ratio", does_not_change_training},
    ConfigKey{"vision_feature_layer", does_not_change_training},
    ConfigKey{"vision_feature_select_strategy", must_have_value, any, R"([null, "default", "full"])"},

    // Generation.
    ConfigKey{"bos_token_id", does_not_change_training, whole | null},
    ConfigKey{"eos_token_id", does_not_change_training, whole | whole_list | null},
    ConfigKey{"assistant_confidence_threshold", does_not_change_training},
    ConfigKey{"assistant_lookbehind", does_not_change_training},
    ConfigKey{"bad_words_ids", does_not_change_training},
    ConfigKey{"begin_suppress_tokens", does_not_change_training},
    ConfigKey{"diversity_penalty", does_not_change_training},
    ConfigKey{"do_sample", does_not_change_training},
    ConfigKey{"early_stopping", does_not_change_training},
    ConfigKey{"encoder_no_repeat_ngram_size", does_not_change_training},
    ConfigKey{"encoder_repetition_penalty", does_not_change_training},
    ConfigKey{"epsilon_cutoff", does_not_change_training},
    ConfigKey{"eta_cutoff", does_not_change_training},
    ConfigKey{"exponential_decay_length_penalty", does_not_change_training},
    ConfigKey{"forced_bos_token_id", does_not_change_training},
    ConfigKey{"forced_eos_token_id", does_not_change_training},
    ConfigKey{"length_penalty", does_not_change_training},
    ConfigKey{"max_length", does_not_change_training},
    ConfigKey{"min_length", does_not_change_training},
    ConfigKey{"no_repeat_ngram_size", does_not_change_training},
    ConfigKey{"num_assistant_tokens", does_not_change_training},
    ConfigKey{"num_assistant_tokens_schedule", does_not_change_training},
    ConfigKey{"num_beam_groups", does_not_change_training},
    ConfigKey{"num_beams", does_not_change_training},
    ConfigKey{"num_return_sequences", does_not_change_training},
    ConfigKey{"output_scores", does_not_change_training},
    ConfigKey{"remove_invalid_values", does_not_change_training},
    ConfigKey{"repetition_penalty", does_not_change_training},
    ConfigKey{"return_dict_in_generate", does_not_change_training},
    ConfigKey{"suppress_tokens", does_not_change_training},
    ConfigKey{"target_lookbehind", does_not_change_training},
    ConfigKey{"temperature", does_not_change_training},
    ConfigKey{"top_k", does_not_change_training},
    ConfigKey{"top_p", does_not_change_training},
    ConfigKey{"typical_p", does_not_change_training},
};

constexpr std::uint8_t kind_bit(RopeKind kind) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(kind));
}
constexpr std::uint8_t kLinear = kind_bit(RopeKind::linear);
constexpr std::uint8_t kLlama3 = kind_bit(RopeKind::llama3);
constexpr std::uint8_t kYarn = kind_bit(RopeKind::yarn);
constexpr std::uint8_t kScaled = kLinear | kLlama3 | kYarn;
constexpr std::uint8_t kAll = kind_bit(RopeKind::none) | kScaled;

constexpr std::array kRopeKeys = {
    RopeKey{"rope_type", kAll},
    RopeKey{"type", kAll},  // of older files
    RopeKey{"rope_theta", kAll},
    RopeKey{"partial_rotary_factor", kScaled},  // the default kind does not look at it
    RopeKey{"factor", kScaled},
    RopeKey{"original_max_position_embeddings", kLlama3 | kYarn},
    RopeKey{"low_freq_factor", kLlama3},
    RopeKey{"high_freq_factor", kLlama3},
    RopeKey{"beta_fast", kYarn},
    RopeKey{"beta_slow", kYarn},
    RopeKey{"truncate", kYarn},
    RopeKey{"attention_factor", kYarn},
    RopeKey{"mscale", kYarn},
    RopeKey{"mscale_all_dim", kYarn},
    RopeKey{"short_factor", 0},   // of longrope
    RopeKey{"long_factor", 0},    // of longrope
    RopeKey{"mrope_section", 0},  // of other models
};

JsonTypes type_of(const Json& value) {
  if (value.is_number_integer()) return whole;
  if (value.is_number_float()) return real;
  if (value.is_boolean()) return boolean;
  if (value.is_string()) return text;
  if (value.is_object()) return object;
  if (value.is_null()) return null;
  const auto all = [&](auto is) { return std::all_of(value.begin(), value.end(), is); };
  if (value.empty()) return whole_list | text_list | other_list;
  if (all([](const Json& item) { return item.is_number_integer(); })) return whole_list;
  if (all([](const Json& item) { return item.is_string(); })) return text_list;
  return other_list;
}

std::string described(JsonTypes types) {
  constexpr std::array<std::pair<JsonTypes, std::string_view>, 9> kWords = {{
      {whole, "a whole number"},
      {real, "a number with a decimal point"},
      {boolean, "true or false"},
      {text, "a text"},
      {whole_list, "a list of whole numbers"},
      {text_list, "a list of texts"},
      {other_list, "a list"},
      {object, "an object"},
      {null, "null"},
  }};
  if ((types & (whole | real)) == (whole | real)) {
    const std::string rest = described(types & ~(whole | real));
    return rest.empty() ? "a number" : "a number, " + rest;
  }
  std::vector<std::string_view> words;
  for (const auto& [type, word] : kWords) {
    if ((types & type) != 0) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// "silu" or "swish"
std::string described(const Json& accepted) {
  if (accepted.empty() || accepted == Json::array({nullptr})) return "no such key";
  std::string text;
  for (const Json& value : accepted) {
    if (!value.is_null()) text += fmt::format("{}{}", text.empty() ? "" : " or ", value.dump());
  }
  return text;
}

void check_key(const JsonReader& json, const ConfigKey& key, const Json& value) {
  if ((type_of(value) & key.types) == 0) json.refuse(key.name, described(key.types));
  if (key.role != must_have_value) return;
  const Json accepted = Json::parse(key.accepted);
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) return;
  json.refuse(key.name, fmt::format("{}{}{}", described(accepted), key.why.empty() ? "" : "; ", key.why));
}

}  // namespace

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

std::span<const RopeKey> rope_keys() {
  return kRopeKeys;
}

const ConfigKey* find_config_key(std::string_view name, ModelFamily family) {
  const auto found = std::ranges::find_if(kKeys, [&](const ConfigKey& key) {
    return key.name == name && (key.families & family_bit(family)) != 0;
  });
  return found == kKeys.end() ? nullptr : &*found;
}

bool uses(RopeKind kind, std::string_view rope_key) {
  const auto found = std::ranges::find(kRopeKeys, rope_key, &RopeKey::name);
  return found != kRopeKeys.end() && (found->kinds & kind_bit(kind)) != 0;
}

std::vector<std::string> check_config_keys(const JsonReader& json, ModelFamily family) {
  std::vector<std::string> ignored;
  for (const auto& [name, value] : json.object().items()) {
    if (const ConfigKey* key = find_config_key(name, family)) {
      check_key(json, *key, value);
    } else {
      ignored.push_back(name);
    }
  }
  return ignored;
}

}  // namespace headroom
