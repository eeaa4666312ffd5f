// A model's folder: its configuration together with what its weights say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/temporary_folder.h"
#include "headroom/model.h"
#include "model/host_tensors.h"
#include "model/small_models.h"

namespace headroom {
namespace {

using testing::ElementsAre;
namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kOutput = "lm_head.weight";

class OpenModel : public testing::Test {
 protected:
  OpenModel() { put(folder / "config.json", to_json(config)); }

  // Weights of an untied model of this shape, whose output projection is `output`.
  std::vector<NamedView> tensors(const std::vector<float>& output) {
    output_ = output;
    const ParameterTable table(config);
    std::vector<NamedView> views;
    for (const Parameter& parameter : table.entries()) {
      views.push_back({parameter.name,
                       table.view(TensorView(weights.data(), DType::f32, {table.elements()}), parameter)});
    }
    views.push_back({kOutput, TensorView(output_.data(), DType::f32, {config.vocab, config.hidden})});
    return views;
  }
  [[nodiscard]] std::vector<float> embedding() const {
    return {weights.begin(), weights.begin() + config.vocab * config.hidden};
  }
  void write(std::span<const NamedView> views) { write_safetensors(folder / "model.safetensors", views); }
  [[nodiscard]] FoundModel open() const { return open_model(folder.path().string()); }
  std::vector<float> load(const ModelConfig& as) {
    const ParameterTable table(as);
    std::vector<float> flat(static_cast<std::size_t>(table.elements()));
    load_weights(folder.path(), table, TensorView(flat.data(), DType::f32, {table.elements()}));
    return flat;
  }

  TemporaryFolder folder;
  ModelConfig config = small_model(true, true);
  std::vector<float> weights = random_weights(config);

 private:
  std::vector<float> output_;
};

TEST_F(OpenModel, TiesWhatIsEqualAndNothingElse) {
  EXPECT_EQ(open().config, config);  // without weights it is as the file says
  write(tensors(embedding()));
  EXPECT_EQ(open().config, config);
  EXPECT_THAT(open().notes, IsEmpty());
  EXPECT_EQ(load(config), weights);

  // The last element alone is another.
  std::vector<float> other = embedding();
  other.back() = std::nextafter(other.back(), 9.0F);
  write(tensors(other));
  ModelConfig untied = config;
  untied.tied_embeddings = false;
  EXPECT_EQ(open().config, untied);
  EXPECT_THAT(open().notes, ElementsAre(HasSubstr("not tied")));
  const ParameterTable table(untied);
  std::vector<float> flat = load(untied);
  EXPECT_EQ(flat[static_cast<std::size_t>(table.at(kOutput).offset) + other.size() - 1], other.back());
  EXPECT_THAT(error_of([&] { load(config); }), HasSubstr("differ, and the model ties them"));
}

TEST_F(OpenModel, ComparesNumbersAndNotBytes) {
  weights[7] = 0.0F;
  std::vector<float> other = embedding();
  other[7] = -0.0F;
  write(tensors(other));
  EXPECT_TRUE(open().config.tied_embeddings);

  // The same numbers in another type, and then numbers that bf16 does not hold.
  std::vector<BFloat16> halves;
  for (std::int64_t i = 0; i < config.vocab * config.hidden; ++i) {
    const auto at = static_cast<std::size_t>(i);
    halves.push_back(static_cast<BFloat16>(weights[at]));
    weights[at] = static_cast<float>(halves.back());
  }
  auto views = tensors(embedding());
  views.back().view = TensorView(halves.data(), DType::bf16, {config.vocab, config.hidden});
  write(views);
  EXPECT_TRUE(open().config.tied_embeddings);
  weights[5] += 1e-6F;
  write(views);
  EXPECT_FALSE(open().config.tied_embeddings);
}

TEST_F(OpenModel, LoadsAnEmbeddingThatIsUnderTheOutputsName) {
  auto views = tensors(embedding());
  views.erase(views.begin());
  write(views);
  EXPECT_TRUE(open().config.tied_embeddings);
  EXPECT_EQ(load(config), weights);
  ModelConfig untied = config;
  untied.tied_embeddings = false;
  EXPECT_THAT(error_of([&] { load(untied); }), HasSubstr("\"model.embed_tokens.weight\" is missing"));
}

TEST_F(OpenModel, FindsTheOutputInWhicheverShard) {
  std::vector<float> other = embedding();
  other[0] += 1;
  const auto views = tensors(other);
  write_safetensors(folder / "a.safetensors", std::span(views).first(3));
  write_safetensors(folder / "b.safetensors", std::span(views).subspan(3));
  // The index names neither of the two, but their files.
  put(folder / "model.safetensors.index.json",
      R"({"weight_map": {"model.norm.weight": "a.safetensors", "x": "b.safetensors"}})");
  EXPECT_FALSE(open().config.tied_embeddings);
}

TEST_F(OpenModel, PlansWithHalfOfADownload) {
  put(folder / "model.safetensors.index.json", R"({"weight_map": {"model.norm.weight": "a.safetensors"}})");
  EXPECT_EQ(open().config, config);
  EXPECT_THAT(open().notes, ElementsAre(HasSubstr("not looked at")));
  put(folder / "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_EQ(open().config, config);
  EXPECT_THAT(open().notes, ElementsAre(HasSubstr("not looked at")));
}

TEST_F(OpenModel, NamesIgnoredKeysInOneNote) {
  const auto with = [&](std::string_view more) {
    std::string text = to_json(config);
    text.insert(text.find('{') + 1, more);
    put(folder / "config.json", text);
  };
  with(R"("foo": 1, "b\na\u001br": null,)");
  EXPECT_THAT(open().notes, ElementsAre(R"(config.json: ignored, as transformers does: "b\na\u001br", foo)"));
  std::string many;
  for (int i = 10; i < 40; ++i) many += fmt::format("\"key{}\": 1,", i);
  with(many);
  EXPECT_THAT(open().notes, ElementsAre(testing::EndsWith("key20, key21 and 18 more")));
  EXPECT_EQ(open().config, config);
}

TEST_F(OpenModel, RefusesAnAdapter) {
  put(folder / "adapter_config.json", "{}");
  EXPECT_THAT(error_of([&] { static_cast<void>(open()); }), HasSubstr("adapter_config.json"));
}

TEST_F(OpenModel, SaysWhereItsFilesAre) {
  EXPECT_EQ(open().folder, folder.path());
  // A folder that has the name of a built-in model is asked for by a path.
  const fs::path before = fs::current_path();
  fs::create_directory(folder / "demo");
  fs::rename(folder / "config.json", folder / "demo/config.json");
  fs::current_path(folder.path());
  EXPECT_EQ(open_model("demo").folder, std::nullopt);
  EXPECT_EQ(open_model("demo").config, built_in_model("demo"));
  EXPECT_EQ(open_model("./demo").folder, "./demo");
  EXPECT_EQ(open_model("./demo").config, config);
  fs::current_path(before);
}

TEST_F(OpenModel, QuotesKeysThatAreNotPlain) {
  std::string text = content(folder / "config.json");
  text.insert(1, "\"caf\u00e9\": 1, \"plain_1\": 2,");
  put(folder / "config.json", text);
  ASSERT_EQ(open().notes.size(), 1);
  EXPECT_THAT(open().notes[0], HasSubstr("\"caf\\u00e9\", plain_1"));
}

TEST(OpenModelByName, TakesABuiltInOne) {
  EXPECT_EQ(open_model("demo").config, built_in_model("demo"));
  EXPECT_THAT(error_of([] { static_cast<void>(open_model(std::string(5000, 'x'))); }),
              HasSubstr("is unknown"));
}

}  // namespace
}  // namespace headroom
