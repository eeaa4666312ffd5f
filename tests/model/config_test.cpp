#include "headroom/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"

namespace headroom {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// The keys that transformers 4 writes for Qwen3 0.6B.
json qwen_file() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 151643},
          {"eos_token_id", 151645},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"hidden_size", 1024},
          {"initializer_range", 0.02},
          {"intermediate_size", 3072},
          {"max_position_embeddings", 40960},
          {"max_window_layers", 28},
          {"model_type", "qwen3"},
          {"num_attention_heads", 16},
          {"num_hidden_layers", 28},
          {"num_key_value_heads", 8},
          {"rms_norm_eps", 1e-06},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"use_cache", true},
          {"use_sliding_window", false},
          {"vocab_size", 151936}};
}

// Llama 3.1 8B, whose file has no head_dim.
json llama_file() {
  return {{"model_type", "llama"},
          {"attention_bias", false},
          {"hidden_act", "silu"},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"max_position_embeddings", 131072},
          {"mlp_bias", false},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 8},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-05},
          {"rope_scaling",
           {{"factor", 8.0},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "llama3"}}},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 128256}};
}

ModelConfig parse(const json& file) {
  return parse_model_config(file.dump());
}

std::vector<std::string> ignored(const json& file) {
  return parse_config_file(file.dump()).ignored;
}

TEST(ModelConfig, ReadsTheFilesOfTheBuiltInModels) {
  EXPECT_EQ(parse(qwen_file()), built_in_model("qwen3-0.6b"));
  EXPECT_EQ(parse(llama_file()), built_in_model("llama3-8b"));
}

TEST(ModelConfig, TakesTransformersDefaultsForWhatIsMissing) {
  const ModelConfig qwen = parse({{"model_type", "qwen3"}});
  EXPECT_EQ(qwen, (ModelConfig{.family = ModelFamily::qwen3,
                               .vocab = 151'936,
                               .hidden = 4096,
                               .layers = 32,
                               .heads_q = 32,
                               .heads_kv = 32,
                               .head_dim = 128,
                               .mlp = 22'016,
                               .max_positions = 32'768,
                               .rope = {}}));
  const ModelConfig llama = parse({{"model_type", "llama"}});
  EXPECT_EQ(llama, (ModelConfig{.family = ModelFamily::llama,
                                .vocab = 32'000,
                                .hidden = 4096,
                                .layers = 32,
                                .heads_q = 32,
                                .heads_kv = 32,
                                .head_dim = 128,
                                .mlp = 11'008,
                                .max_positions = 2048,
                                .rope = {}}));
  // A llama's follow from what is there, and so does null.
  EXPECT_EQ(parse({{"model_type", "llama"}, {"num_attention_heads", 64}}).heads_kv, 64);
  EXPECT_EQ(parse({{"model_type", "llama"}, {"num_attention_heads", 64}}).head_dim, 64);
  EXPECT_EQ(parse({{"model_type", "llama"}, {"head_dim", nullptr}}).head_dim, 128);
  EXPECT_EQ(parse({{"model_type", "qwen3"}, {"num_attention_heads", 64}, {"num_key_value_heads", nullptr}})
                .heads_kv,
            64);
}

TEST(ModelConfig, ReadsWhatIsSpelledInAnotherWay) {
  json file = qwen_file();
  file["hidden_act"] = "swish";
  file["attention_dropout"] = 0;
  file["torch_dtype"] = nullptr;
  file["dtype"] = "bfloat16";
  EXPECT_EQ(parse(file), built_in_model("qwen3-0.6b"));
  file["rms_norm_eps"] = 1.0;
  EXPECT_EQ(parse(file).rms_epsilon, 1);
}

TEST(ModelConfig, ReadsBothFormsOfRope) {
  json file = llama_file();
  file["rope_parameters"] = file["rope_scaling"];
  file["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(parse(file), built_in_model("llama3-8b"));  // both, alike
  EXPECT_TRUE(ignored(file).empty());
  file.erase("rope_scaling");
  file.erase("rope_theta");
  EXPECT_EQ(parse(file), built_in_model("llama3-8b"));
  file.erase("rope_parameters");
  EXPECT_EQ(parse(file).rope, RopeSettings{});  // Llama 2: theta 10,000

  file["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};  // the oldest form
  EXPECT_EQ(parse(file).rope, (RopeSettings{.kind = RopeKind::linear, .factor = 4}));
}

TEST(ModelConfig, TakesTheRopeThatTransformersTakesWhereTwoAreGiven) {
  json file = qwen_file();  // with a theta of a million outside
  file["rope_parameters"] = {{"rope_theta", 500}};
  EXPECT_EQ(parse(file).rope.theta, 500);
  EXPECT_THAT(ignored(file), ElementsAre("rope_theta"));
  file["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_EQ(parse(file).rope, (RopeSettings{.theta = 1e6, .kind = RopeKind::linear, .factor = 2}));
  EXPECT_THAT(ignored(file), ElementsAre("rope_parameters"));
  file.erase("rope_theta");  // and not the other form's
  EXPECT_EQ(parse(file).rope.theta, 10'000);
  file["rope_scaling"] = json::object();
  EXPECT_EQ(parse(file).rope.theta, 500);
  file["rope_scaling"] = {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}};
  EXPECT_EQ(parse(file).rope.kind, RopeKind::linear);

  json llama = llama_file();
  llama["original_max_position_embeddings"] = 4096;  // outside counts more
  EXPECT_EQ(parse(llama).rope.original_positions, 4096);
  llama.erase("original_max_position_embeddings");
  llama["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse(llama).rope.original_positions, 131072);
}

TEST(ModelConfig, ReadsYarnAsTransformersDoes) {
  json file = qwen_file();
  file["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const RopeSettings plain{.theta = 1e6, .kind = RopeKind::yarn, .factor = 4, .original_positions = 32768};
  EXPECT_EQ(parse(file).rope, plain);
  // A factor of null is the ratio of the contexts; without the original it is the whole context.
  file["rope_scaling"]["factor"] = nullptr;
  EXPECT_EQ(parse(file).rope.factor, 40960.0 / 32768.0);
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(parse(file).rope.original_positions, 40960);
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 40.0},    {"beta_fast", 16},
                          {"beta_slow", 2},      {"truncate", false}, {"attention_factor", 1.5}};
  EXPECT_EQ(parse(file).rope, (RopeSettings{.theta = 1e6,
                                            .kind = RopeKind::yarn,
                                            .factor = 40,
                                            .original_positions = 40960,
                                            .beta_fast = 16,
                                            .beta_slow = 2,
                                            .attention_factor = 1.5,
                                            .truncate = false}));
  file["rope_scaling"]["truncate"] = nullptr;
  EXPECT_FALSE(parse(file).rope.truncate);
  file["rope_scaling"].erase("truncate");
  EXPECT_TRUE(parse(file).rope.truncate);
  file["rope_scaling"]["beta_fast"] = 0;
  file["rope_scaling"]["beta_slow"] = nullptr;
  EXPECT_EQ(parse(file).rope.beta_fast, 32);
  EXPECT_EQ(parse(file).rope.beta_slow, 1);
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}};
  EXPECT_NEAR(parse(file).rope.attention_factor.value(), (0.1 * std::log(40) + 1) / (0.05 * std::log(40) + 1),
              1e-15);
}

TEST(ModelConfig, ReadsWindows) {
  using enum AttentionKind;
  json file = qwen_file();
  file["num_hidden_layers"] = 4;
  file["sliding_window"] = 512;
  file["max_window_layers"] = 3;
  EXPECT_EQ(parse(file).sliding_window, 0);  // not in use
  file["use_sliding_window"] = true;
  EXPECT_EQ(parse(file).sliding_window, 512);
  EXPECT_EQ(parse(file).layer_attention, (std::vector{full, full, full, sliding}));
  file.erase("sliding_window");
  EXPECT_EQ(parse(file).sliding_window, 4096);  // the default, where null is none
  file["sliding_window"] = nullptr;
  EXPECT_EQ(parse(file).sliding_window, 0);
  file["sliding_window"] = 512;
  file["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "attention"};
  EXPECT_EQ(parse(file).layer_attention, (std::vector{sliding, full, sliding, full}));
  file.erase("layer_types");
  file["max_window_layers"] = -3;
  EXPECT_EQ(parse(file).layer_attention, std::vector(4, sliding));
  file["max_window_layers"] = 4;
  EXPECT_EQ(parse(file).sliding_window, 0);  // in use by no layer
  file.erase("max_window_layers");
  EXPECT_EQ(parse(file).sliding_window, 0);  // from layer 28 on
  file["num_hidden_layers"] = 30;
  EXPECT_EQ(std::ranges::count(parse(file).layer_attention, sliding), 2);

  json llama = llama_file();
  llama["sliding_window"] = 4096;  // which no llama looks at
  EXPECT_EQ(parse(llama).sliding_window, 0);
  EXPECT_THAT(ignored(llama), ElementsAre("sliding_window"));
}

TEST(ModelConfig, ReadsThePadTokenAsTorchCountsRows) {
  json file = qwen_file();
  const std::int64_t vocab = parse(file).vocab;
  EXPECT_EQ(parse(file).pad_token, std::nullopt);
  for (const auto& [said, row] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 0}, {151'643, 151'643}, {vocab - 1, vocab - 1}, {-1, vocab - 1}, {-vocab, 0}}) {
    file["pad_token_id"] = said;
    EXPECT_EQ(parse(file).pad_token, row);
  }
  file["pad_token_id"] = nullptr;
  EXPECT_EQ(parse(file).pad_token, std::nullopt);
}

TEST(ModelConfig, NamesWhatItIgnores) {
  EXPECT_TRUE(ignored(qwen_file()).empty());
  EXPECT_TRUE(ignored(llama_file()).empty());
  json file = qwen_file();
  file.update({{"foo", 1},
               {"mlp_bias", true},  // a Qwen3 has none to switch on
               {"quantization", nullptr},
               {"partial_rotary_factor", 0.5},  // default rope does not look at it
               {"rope_scaling", {{"rope_type", "default"}, {"factor", 2}, {"mrope_section", {1, 2}}}}});
  EXPECT_THAT(ignored(file), UnorderedElementsAre("foo", "mlp_bias", "quantization", "rope_scaling.factor",
                                                  "rope_scaling.mrope_section", "partial_rotary_factor"));
  EXPECT_EQ(parse(file), built_in_model("qwen3-0.6b"));
}

std::vector<ModelConfig> round_trip_models() {
  std::vector<ModelConfig> models;
  for (const std::string_view name : built_in_model_names()) models.push_back(built_in_model(name));
  ModelConfig model = built_in_model("demo");
  model.rms_epsilon = 3.3e-7;
  model.pad_token = 3;
  model.rope = {.theta = 12345.678901234567, .kind = RopeKind::linear, .factor = 1.1};
  models.push_back(model);
  model.rope = {.theta = 1e6,
                .kind = RopeKind::yarn,
                .factor = 4,
                .original_positions = 32768,
                .beta_fast = 31.5,
                .beta_slow = 0.9,
                .attention_factor = 1.0 / 3,
                .truncate = false};
  model.layers = 2;
  model.sliding_window = 100;
  model.layer_attention = {AttentionKind::sliding, AttentionKind::full};
  models.push_back(model);
  return models;
}

TEST(ModelConfig, ReadsBackWhatItWrites) {
  for (const ModelConfig& model : round_trip_models()) {
    validate(model);
    const std::string text = to_json(model, DType::bf16);
    EXPECT_EQ(parse_model_config(text), model) << text;
    EXPECT_TRUE(parse_config_file(text).ignored.empty()) << text;
    const json file = json::parse(text);
    EXPECT_EQ(file["torch_dtype"], "bfloat16");
    EXPECT_TRUE(file["rope_theta"].is_number_float());  // transformers is strict about floats
    EXPECT_TRUE(file["rms_norm_eps"].is_number_float());
    // The form of transformers 5 alone says the same.
    json newer = file;
    newer.erase("rope_theta");
    newer.erase("rope_scaling");
    EXPECT_EQ(parse(newer), model);
  }
  EXPECT_THAT(error_of([] { static_cast<void>(to_json(built_in_model("demo"), DType::i32)); }),
              HasSubstr("i32"));
}

struct BadFile {
  std::function<void(json&)> breaks;
  std::string message;
  bool llama = false;
};

std::vector<BadFile> bad_files() {
  const auto set = [](std::string key, json value) {
    return [key = std::move(key), value = std::move(value)](json& file) { file[key] = value; };
  };
  const auto without = [](std::string key) {
    return [key = std::move(key)](json& file) { file.erase(key); };
  };
  const auto yarn = [](json more) {
    return [more = std::move(more)](json& file) {
      file["rope_scaling"] = {
          {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32768}};
      file["rope_scaling"].update(more);
    };
  };
  return {
      {set("model_type", "mistral"), "model_type is \"mistral\"; accepted: \"qwen3\" or \"llama\""},
      {set("model_type", 7), "model_type is 7; accepted: a text"},
      {without("model_type"), "model_type is missing"},
      {set("model_type", "a\nb"), "model_type is \"a\\nb\""},
      {set("vocab_size", 0), "vocab_size is 0; accepted: 1 to 2147483647"},
      {set("vocab_size", -5), "vocab_size is -5"},
      {set("vocab_size", 1.5), "vocab_size is 1.5; accepted: a whole number"},
      {set("vocab_size", 18446744073709551615u),
       "vocab_size is 18446744073709551615; accepted: a whole number"},
      {set("vocab_size", "many"), "vocab_size is \"many\""},
      {set("vocab_size", std::string(1000, 'x')), "xxx...; accepted: a whole number"},
      {set("vocab_size", json::array({1, 2})), "vocab_size is a list of 2"},
      {set("hidden_size", true), "hidden_size is true"},
      {set("hidden_size", 1 << 30), "hidden_size is 1073741824; accepted: 1 to 1048576"},
      {set("num_hidden_layers", 1'000'000), "num_hidden_layers is 1000000; accepted: 1 to 10000"},
      {set("num_attention_heads", 0), "num_attention_heads is 0"},
      {set("num_key_value_heads", 3),
       "num_key_value_heads is 3; accepted: what divides num_attention_heads, 16"},
      {set("num_key_value_heads", 32), "num_key_value_heads is 32; accepted: 1 to 16"},
      {set("head_dim", 100), "head_dim is 100; accepted: a multiple of 8 from 8 to 256"},
      {set("head_dim", 264), "head_dim is 264"},
      {set("head_dim", 0), "head_dim is 0"},
      {set("head_dim", nullptr), "head_dim is null; accepted: a whole number"},
      {set("head_dim", 128.0), "head_dim is 128.0; accepted: a whole number"},
      {without("num_key_value_heads"),
       "num_key_value_heads is 32; accepted: 1 to 16 (num_key_value_heads is not in the file"},
      {set("num_attention_heads", 0), "num_attention_heads is 0", true},
      {set("num_attention_heads", 24), "num_attention_heads is 24; accepted without head_dim", true},
      {[](json& file) {
         file.update({{"num_attention_heads", 24}, {"head_dim", 128}});
       },
       "num_attention_heads is 24; accepted in a llama: what divides hidden_size, 4096", true},
      {set("intermediate_size", -1), "intermediate_size is -1"},
      {set("max_position_embeddings", nullptr), "max_position_embeddings is null; accepted: a whole number"},
      {set("max_position_embeddings", 0), "max_position_embeddings is 0"},
      {set("rms_norm_eps", 1), "rms_norm_eps is 1; accepted: a number with a decimal point"},
      {set("rms_norm_eps", 0.0), "rms_norm_eps is 0; accepted: over 0 up to 1"},
      {set("rms_norm_eps", 1.5), "rms_norm_eps is 1.5; accepted: over 0 up to 1"},
      {set("rms_norm_eps", nullptr), "rms_norm_eps is null"},
      {set("rms_norm_eps", -1e-6), "rms_norm_eps is -1e-06; accepted: over 0"},
      {set("hidden_act", "gelu"), "hidden_act is \"gelu\"; accepted: \"silu\" or \"swish\""},
      {set("is_causal", false), "is_causal is false; accepted: true"},
      {set("is_causal", nullptr), "is_causal is null; accepted: true"},
      {set("per_layer_config", {{"0", {{"intermediate_size", 8}}}}),
       "per_layer_config is an object; accepted: no"},
      {set("transformers_weights", "other.safetensors"),
       "transformers_weights is \"other.safetensors\"; accepted: no such key; weights are read from"},
      {set("configuration_files", json::array()),
       "configuration_files is a list of 0; accepted: no such key"},
      {set("text_config", {{"hidden_size", 8}}), "text_config is an object"},
      {set("attribute_map", {{"hidden_size", "n_embd"}}), "attribute_map is an object"},
      {set("fusion_config", {{"a", 1}}), "fusion_config is an object"},
      {set("num_kv_shared_layers", 1), "num_kv_shared_layers is 1; accepted: 0"},
      {set("return_dict", false), "return_dict is false; accepted: true"},
      {set("use_return_dict", true), "use_return_dict is true; accepted: no such key"},
      {set("is_encoder_decoder", true), "is_encoder_decoder is true"},
      {set("dtype", "int4"), "dtype is \"int4\"; accepted: \"float32\""},
      {set("use_cache", 1), "use_cache is 1; accepted: true or false"},
      {set("eos_token_id", json::array({"a"})),
       "eos_token_id is a list of 1; accepted: a whole number, a list of"},
      {set("initializer_range", 2.0), "initializer_range is 2.0; accepted: 0.0 to 1.0", true},
      {[](json& file) {
         file.update({{"num_heads", 4}, {"embed_dim", 7}});
       },
       "embed_dim is 7; accepted: 512"},
      {[](json& file) {
         file.update({{"num_heads", std::numeric_limits<std::int64_t>::max()}, {"embed_dim", 7}});
       },
       "num_heads is 9223372036854775807; accepted: what fits in 64 bits times head_dim"},
      {set("pad_token_id", 151936), "pad_token_id is 151936; accepted: -151936 to 151935"},
      {set("pad_token_id", -151937), "pad_token_id is -151937"},
      {set("pad_token_id", true), "pad_token_id is true; accepted: a whole number, null"},
      {set("attention_bias", true), "attention_bias is true; accepted: false"},
      {set("mlp_bias", true), "mlp_bias is true; accepted: false", true},
      {set("attention_dropout", 0.1), "attention_dropout is 0.1; accepted: 0"},
      {set("attention_dropout", nullptr), "attention_dropout is null"},
      {set("attention_dropout", nullptr), "attention_dropout is null", true},
      {set("partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5; accepted: 1", true},
      {set("quantization_config", {{"bits", 4}}),
       "quantization_config is an object; accepted: no such key; the weights have to be"},
      {set("tie_word_embeddings", 1), "tie_word_embeddings is 1; accepted: true or false"},
      {set("tie_word_embeddings", nullptr), "tie_word_embeddings is null; accepted: true or false"},
      {set("rope_theta", nullptr), "rope_theta is null; accepted: a number"},
      {set("rope_theta", 1), "rope_theta is 1; accepted: over 1"},
      {set("rope_theta", -10000), "rope_theta is -10000"},
      {set("rope_scaling", 4), "rope_scaling is 4; accepted: an object"},
      {set("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}),
       "rope_scaling: rope_type is \"dynamic\"; accepted: \"default\", \"linear\", \"llama3\" or \"yarn\""},
      {set("rope_scaling", {{"type", "longrope"}, {"long_factor", {1, 2}}, {"factor", "x"}}),
       "rope_scaling: type is \"longrope\"; accepted: \"default\""},
      {set("rope_scaling", {{"type", "su"}}), "rope_scaling: type is \"su\""},
      {set("rope_scaling", {{"rope_type", nullptr}, {"type", "linear"}, {"factor", 2}}),
       "rope_scaling: rope_type is null; accepted: \"default\""},
      {set("rope_scaling", {{"type", nullptr}, {"factor", 2}}), "rope_scaling: type is null"},
      {set("rope_scaling", {{"rope_type", "linear"}}), "rope_scaling: factor is missing"},
      {set("rope_scaling", {{"rope_type", "linear"}, {"factor", nullptr}}), "rope_scaling: factor is null"},
      {set("rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}), "rope factor is 0.5; accepted: 1 to"},
      {set("rope_scaling", {{"rope_type", "yarn"}}),
       "rope_scaling: factor is missing; accepted: a number, or null"},
      {set("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
       "full_attention is an object; accepted: one rope for every layer"},
      {set("rope_parameters", {{"rope_theta", nullptr}}), "rope_parameters: rope_theta is null"},
      {yarn({{"beta_fast", 0.5}}), "beta_fast is 0.5; accepted: beta_slow, 1,"},
      {yarn({{"beta_slow", -1}}), "beta_slow is -1"},
      {yarn({{"truncate", 1}}), "truncate is 1; accepted: true or false"},
      {yarn({{"attention_factor", -1}}), "attention_factor is -1"},
      {yarn({{"original_max_position_embeddings", 0}}), "original_max_position_embeddings is 0"},
      {yarn({{"partial_rotary_factor", 0.25}}), "partial_rotary_factor is 0.25"},
      {[](json& file) { file["rope_scaling"]["original_max_position_embeddings"] = nullptr; },
       "rope_scaling: original_max_position_embeddings is null", true},
      {[](json& file) { file["rope_scaling"].erase("low_freq_factor"); }, "low_freq_factor is missing", true},
      {[](json& file) { file["rope_scaling"]["high_freq_factor"] = 1; },
       "high_freq_factor is 1; accepted: over 1", true},
      {set("original_max_position_embeddings", nullptr), "original_max_position_embeddings is null", true},
      {set("layer_types", {"full_attention"}), "layer_types is a list of 1; accepted: a list of 28"},
      {set("layer_types", {"full_attention"}), "layer_types is a list of 1; accepted: a list of 32", true},
      {set("layer_types", "full_attention"),
       "layer_types is \"full_attention\"; accepted: a list of texts, null"},
      {[](json& file) { file["layer_types"] = json::array_t(28, "sliding_attention"); },
       "layer_types has \"sliding_attention\" for layer 0; accepted without a window: \"full_attention\""},
      {[](json& file) { file["layer_types"] = json::array_t(32, "sliding_attention"); },
       "layer_types has \"sliding_attention\" for layer 0; accepted in a llama: \"full_attention\"", true},
      {[](json& file) { file["layer_types"] = json::array_t(28, "nope"); },
       "layer_types has \"nope\" for layer 0"},
      {set("use_sliding_window", nullptr), "use_sliding_window is null; accepted: true or false"},
      {[](json& file) {
         file.update({{"use_sliding_window", true}, {"sliding_window", 0}, {"max_window_layers", 1}});
       },
       "sliding_window is 0; accepted: 1 to"},
      {[](json& file) {
         file.update({{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", {"full"}}});
       },
       "layer_types is a list of 1; accepted: a list of 28"},
      {[](json& file) {
         file.update({{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", json::array()}});
         for (int i = 0; i < 28; ++i) file["layer_types"].push_back("chunked_attention");
       },
       "layer_types has \"chunked_attention\" for layer 0"},
  };
}

TEST(ModelConfig, RefusesBadFilesInOneLine) {
  for (const BadFile& bad : bad_files()) {
    json file = bad.llama ? llama_file() : qwen_file();
    bad.breaks(file);
    const std::string message =
        error_of([&] { static_cast<void>(parse_model_config(file.dump(), "m/config.json")); });
    EXPECT_THAT(message, HasSubstr(bad.message));
    EXPECT_TRUE(message.starts_with("m/config.json: ")) << message;
  }
}

TEST(ModelConfig, RefusesWhatIsNoJson) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"{", "not JSON from byte 2 on"},
      {"[]", "a list of 0 is no JSON object"},
      {"null", "null is no JSON object"},
      {"{\"a\": 1, \"a\": 2}", "key \"a\" is there twice"},
      {"{\"a\": {\"b\": 1, \"b\": 2}}", "key \"b\" is there twice"},
      {"{\"a\": 1e999}", "64 bits"},
      {"{\"a\": \"\xff\"}", "not JSON"},
      {std::string("{}\0junk", 7), "not JSON from byte 2 on"},
      {std::string(100'000, '['), "nested deeper than 32"},
      {"{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "nested deeper than 32"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(error_of([&] { static_cast<void>(parse_model_config(text)); }), HasSubstr(message))
        << text.substr(0, 50);
  }
}

TEST(ModelConfig, ValidatesWhatNoFileCouldSay) {
  const std::vector<std::function<void(ModelConfig&)>> breaks = {
      [](auto& c) { c.rope.factor = 2; },  // of no kind of scaling
      [](auto& c) { c.rope.attention_factor = 1; },
      [](auto& c) { c.rope.original_positions = 5; },
      [](auto& c) { c.rope.theta = std::nan(""); },
      [](auto& c) { c.rms_epsilon = std::nan(""); },
      [](auto& c) {
        c.layer_attention = {AttentionKind::sliding, AttentionKind::full};
      },
      [](auto& c) { c.sliding_window = 5; },
      [](auto& c) {
        c.sliding_window = 5, c.layer_attention = {AttentionKind::full, AttentionKind::full};
      },
      [](auto& c) {
        c.sliding_window = 5, c.layer_attention = std::vector(1, AttentionKind::sliding);
        c.family = ModelFamily::llama;
      },
      [](auto& c) { c.sliding_window = -1; },
      [](auto& c) { c.pad_token = -1; },
      [](auto& c) { c.pad_token = c.vocab; },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    ModelConfig broken = built_in_model("demo");
    breaks[i](broken);
    EXPECT_THROW(validate(broken), Error) << i;
    EXPECT_THROW(static_cast<void>(to_json(broken)), Error) << i;
  }
}

TEST(BuiltInModel, RefusesOtherNames) {
  EXPECT_EQ(error_of([] { static_cast<void>(built_in_model("gpt-2")); }),
            "model 'gpt-2' is unknown; use one of demo, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, "
            "qwen3-14b, qwen3-32b, llama3-8b, llama3-70b, or a Hugging Face folder");
}

}  // namespace
}  // namespace headroom
