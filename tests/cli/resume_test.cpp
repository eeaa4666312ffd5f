// headroom train and its folder: what is resumed, what is refused, what is never replaced.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run.h"
#include "core/temporary_folder.h"
#include "headroom/core/files.h"
#include "headroom/model.h"
#include "headroom/train/checkpoint.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

using Arguments = std::vector<std::string>;

class Resume : public testing::Test {
 protected:
  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }

  // A small run in folder "run", with further arguments; those given again replace what stands here.
  [[nodiscard]] CliResult train(const Arguments& more) const {
    std::vector<std::pair<std::string, std::string>> options = {
        {"--model", "demo"}, {"--data", "recall"},  {"--context", "64"},
        {"--steps", "4"},    {"--budget", "64MiB"}, {"--out", path("run")}};
    Arguments arguments = {"train"};
    for (const auto& [option, value] : options) {
      if (std::ranges::find(more, option) == more.end()) arguments.insert(arguments.end(), {option, value});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }
  // Trains, which has to work.
  void trained(const Arguments& more) const {
    const CliResult result = train(more);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  // The line of a run that is refused, having changed nothing in its folder.
  [[nodiscard]] std::string refused(const Arguments& more) const {
    const auto before = contents();
    const CliResult result = train(more);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_EQ(contents(), before);
    return result.err;
  }
  // Every file below "run".
  [[nodiscard]] std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> found;
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run", ignored)) {
      if (entry.is_regular_file()) found[entry.path().string()] = content(entry.path());
    }
    return found;
  }
  // A model's folder from a checkpoint: the weights, and a tokenizer.
  void make_model(std::string_view name) const {
    trained({"--out", path("made"), "--steps", "1"});
    fs::create_directory(folder_ / name);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(folder_ / "made/step-00000001" / file, folder_ / name / file);
    put(folder_ / name / "tokenizer.json", "{\"version\": \"1.0\"}");
    put(folder_ / name / "generation_config.json", "{}");
    fs::remove_all(folder_ / "made");
  }

  TemporaryFolder folder_;
};

TEST_F(Resume, OneRunPerFolder) {
  trained({"--save-every", "2"});
  fs::remove_all(folder_ / "run/step-00000004");
  {
    const FolderLock other(folder_ / "run");
    for (const Arguments& more : {Arguments{}, {"--resume"}, {"--overwrite"}}) {
      EXPECT_THAT(refused(more), HasSubstr("run is in use by process"));
    }
  }
  trained({"--resume"});
  EXPECT_FALSE(fs::exists(folder_ / "run/.lock"));
}

TEST_F(Resume, NothingIsReplacedWithoutAWord) {
  trained({"--save-every", "2"});
  EXPECT_THAT(refused({}),
              HasSubstr("has the checkpoint step-00000004; --resume goes on from it, --overwrite"));
  EXPECT_THAT(refused({"--resume", "--overwrite"}), HasSubstr("give one of them"));
  fs::remove(folder_ / "run/step-00000004/state.json");
  fs::remove_all(folder_ / "run/step-00000002");
  EXPECT_THAT(refused({}), HasSubstr("has step-00000004, which is not complete (state.json is missing)"));
  EXPECT_THAT(refused({"--resume"}), HasSubstr("has no checkpoint but step-00000004, which is not complete"));
  trained({"--overwrite", "--steps", "3"});
  EXPECT_EQ(latest_checkpoint(folder_ / "run"), folder_ / "run/step-00000003");
  EXPECT_TRUE(incomplete_checkpoints(folder_ / "run").empty());
}

// A run that died before its first checkpoint, or somebody else's file.
TEST_F(Resume, MetricsWithoutACheckpointAreNotReplacedWithoutAWord) {
  fs::create_directory(folder_ / "run");
  put(folder_ / "run/metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THAT(refused({}),
              HasSubstr("run/metrics.jsonl has 11 B and no checkpoint belongs to it; --overwrite"));
  EXPECT_THAT(refused({"--resume"}), HasSubstr("has no checkpoint"));
  trained({"--overwrite"});
  EXPECT_EQ(std::ranges::count(content(folder_ / "run/metrics.jsonl"), '\n'), 4);
  fs::remove_all(folder_ / "run");
  fs::create_directory(folder_ / "run");
  put(folder_ / "run/metrics.jsonl", "");  // of a run that finished no step
  trained({});
}

TEST_F(Resume, NothingIsRemovedForARunThatCannotWrite) {
  trained({"--save-every", "2"});
  forbid_writing(folder_ / "run/metrics.jsonl");
  const WithoutPrivileges user(folder_);
  EXPECT_THAT(refused({"--overwrite"}), HasSubstr("metrics.jsonl: Permission denied"));
  forbid_writing(folder_ / "run");
  EXPECT_THAT(refused({"--overwrite"}), HasSubstr(".lock: Permission denied"));
  allow_writing(folder_ / "run");
}

TEST_F(Resume, AnOldCheckpointThatCannotBeRemovedIsANote) {
  trained({"--steps", "2"});
  forbid_writing(folder_ / "run/step-00000002");
  const WithoutPrivileges user(folder_);
  const CliResult result = train({"--resume", "--save-every", "1", "--keep-last", "1", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto notes = nlohmann::json::parse(result.out)["notes"];
  EXPECT_EQ(std::ranges::count_if(notes,
                                  [](const auto& note) {
                                    return note.template get<std::string>().find("cannot remove") !=
                                           std::string::npos;
                                  }),
            1)
      << notes;
  EXPECT_THAT(names(folder_ / "run"),
              testing::ElementsAre("metrics.jsonl", "step-00000002", "step-00000004"));
  const CliResult text = train({"--resume", "--steps", "5", "--keep-last", "1"});
  EXPECT_THAT(text.out, HasSubstr("note    cannot remove " + path("run/step-00000002")));
  allow_writing(folder_ / "run/step-00000002");
}

TEST_F(Resume, ThePageIsNoneOfTheRunsOwnFiles) {
  trained({"--save-every", "2"});
  for (const char* own : {"run/metrics.jsonl", "run/.lock", "run/../run/metrics.jsonl",
                          "run/step-00000002/model.safetensors", "run/step-00000009"}) {
    EXPECT_THAT(refused({"--overwrite", "--html", path(own)}),
                testing::AnyOf(HasSubstr("is the run's own file"), HasSubstr("is not what --html writes")))
        << own;
  }
  trained({"--overwrite", "--html", path("run/page.html")});
}

TEST_F(Resume, GoesOnFromTheLastCompleteCheckpointAndSaysSo) {
  trained({"--save-every", "2"});
  const std::string whole = content(folder_ / "run/step-00000004/model.safetensors");
  fs::remove(folder_ / "run/step-00000004/state.json");
  const CliResult result = train({"--resume"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000004 is not complete (state.json is missing)"));
  EXPECT_EQ(content(folder_ / "run/step-00000004/model.safetensors"), whole);
}

TEST_F(Resume, ComparesWhatTheBitsDependOn) {
  trained({"--save-every", "2"});
  fs::remove_all(folder_ / "run/step-00000004");
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--context", "128"}, "context 64 (this run: 128)"},
      {{"--batch", "2"}, "batch 1 (this run: 2)"},
      {{"--accumulation", "2"}, "accumulation 1 (this run: 2)"},
      {{"--attention", "window:32"}, "attention causal (this run: window:32)"},
      {{"--dtype", "bf16"}, "dtype f32 (this run: bf16)"},
      {{"--seed", "1"}, "seed 0 (this run: 1)"},
      {{"--learning-rate", "1e-3"}, "learning_rate 0.0003 (this run: 0.001)"},
      {{"--warmup", "1"}, "warmup 0 (this run: 1)"},
      {{"--final-fraction", "0.5"}, "final_fraction 0.1 (this run: 0.5)"},
      {{"--weight-decay", "0"}, "weight_decay 0.1 (this run: 0)"},
      {{"--clip", "2"}, "clip 1 (this run: 2)"},
      {{"--data", "recall:keys=2"}, "the data is not that of"},
  };
  for (const auto& [changed, message] : cases) {
    Arguments more = {"--resume"};
    more.insert(more.end(), changed.begin(), changed.end());
    EXPECT_THAT(refused(more), HasSubstr(message));
  }
  // Neither changes a bit.
  trained({"--resume", "--threads", "1", "--budget", "12MiB", "--save-every", "1"});
}

TEST_F(Resume, EveryStateGoesOnWithItsBitsAndInNoOther) {
  for (const std::string state : {"f32", "bf16", "8bit"}) {
    Arguments resume = {"--dtype", "bf16", "--state", state, "--save-every", "2"};
    trained(resume);
    const auto whole = contents();
    fs::remove_all(folder_ / "run/step-00000004");
    resume.emplace_back("--resume");
    for (const std::string other : {"f32", "bf16", "8bit"}) {
      if (other == state) continue;
      resume[3] = other;
      EXPECT_THAT(refused(resume), HasSubstr(fmt::format("state {} (this run: {})", state, other)));
    }
    resume[3] = state;
    trained(resume);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string name = path(fmt::format("run/step-00000004/{}", file));
      EXPECT_TRUE(content(name) == whole.at(name)) << state << " " << name;
    }
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Resume, ComparesTheDataByWhatItHolds) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += fmt::format("{} ", i * i % 977);
  put(folder_ / "book.txt", text);
  const Arguments data = {"--data", path("book.txt")};
  trained({"--data", path("book.txt"), "--save-every", "2"});
  const std::string whole = content(folder_ / "run/step-00000004/model.safetensors");
  const auto again = [&](const std::string& spec) {
    fs::remove_all(folder_ / "run/step-00000004");
    return Arguments{"--data", spec, "--resume"};
  };
  trained(again(path("./run/../book.txt")));
  EXPECT_EQ(content(folder_ / "run/step-00000004/model.safetensors"), whole);
  fs::create_directory(folder_ / "moved");
  fs::rename(folder_ / "book.txt", folder_ / "moved/book.txt");
  trained(again(path("moved/book.txt")));
  EXPECT_EQ(content(folder_ / "run/step-00000004/model.safetensors"), whole);
  text[10'000] = '#';
  put(folder_ / "moved/book.txt", text);
  EXPECT_THAT(refused(again(path("moved/book.txt"))), HasSubstr("the data is not that of"));
}

TEST_F(Resume, ComparesTheDocumentsOfASequence) {
  fs::create_directory(folder_ / "documents");
  for (int i = 0; i < 5; ++i) put(folder_ / fmt::format("documents/{}.txt", i), std::string(100, 'a'));
  trained({"--data", path("documents"), "--save-every", "2", "--max-documents", "4"});
  fs::remove_all(folder_ / "run/step-00000004");
  EXPECT_THAT(refused({"--data", path("documents"), "--resume"}),
              HasSubstr("max_documents 4 (this run: 256)"));
  trained({"--data", path("documents"), "--resume", "--max-documents", "4"});
}

TEST_F(Resume, SaysWhatChangesLastBits) {
  setenv("HEADROOM_SIMD", "portable", 1);
  trained({"--save-every", "2"});
  unsetenv("HEADROOM_SIMD");
  fs::remove_all(folder_ / "run/step-00000004");
  const CliResult result = train({"--resume", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  if (json.contains("notes")) {  // on a machine that has nothing wider there is nothing to say
    EXPECT_THAT(json["notes"].dump(), HasSubstr("simd portable (this run: "));
    EXPECT_THAT(json["notes"].dump(), HasSubstr("last bits"));
  }
}

TEST_F(Resume, AFinishedRunCanBeExtended) {
  trained({"--steps", "20"});
  EXPECT_THAT(refused({"--steps", "20", "--resume"}),
              HasSubstr("has done 20 of 20 steps, so nothing is left"));
  EXPECT_THAT(refused({"--steps", "19", "--resume"}), HasSubstr("has done 20 of 19 steps"));
  const CliResult result = train({"--steps", "40", "--resume"});
  ASSERT_EQ(result.code, 0) << result.err;
  // Warm-up stays at the two steps of the first run: 3e-4 (0.1 + 0.9 cos) half way through.
  EXPECT_THAT(result.out,
              HasSubstr("note    --steps is 40 and was 20: from here on the learning rate is that of "
                        "a run of 40 steps (step 21: 0.000165 instead of 3e-05)"));
  EXPECT_EQ(read_train_state(folder_ / "run/step-00000040").settings.at("steps"), "40");
  EXPECT_EQ(read_train_state(folder_ / "run/step-00000040").settings.at("warmup"), "2");
}

TEST_F(Resume, RefusesAnotherModelBeforeMemoryIsTaken) {
  trained({"--save-every", "2"});
  // The budget would not do for it: what is wrong with the model is said first.
  EXPECT_THAT(refused({"--resume", "--model", "qwen3-0.6b", "--steps", "8", "--budget", "1MiB"}),
              HasSubstr("is of another model: its "));
}

TEST_F(Resume, RefusesADamagedCheckpoint) {
  trained({"--save-every", "2"});
  fs::remove_all(folder_ / "run/step-00000002");
  const fs::path file = folder_ / "run/step-00000004/optimizer.safetensors";
  std::string text = content(file);
  text[text.size() - 100] ^= 16;
  put(file, text);
  EXPECT_THAT(refused({"--resume", "--steps", "8"}),
              HasSubstr("tensor \"second_moment.model.norm.weight\" is damaged"));
  text[text.size() - 100] ^= 16;
  put(file, text);
  fs::rename(folder_ / "run/step-00000004", folder_ / "run/step-00000005");
  EXPECT_THAT(refused({"--resume", "--steps", "8"}),
              HasSubstr("is of step 4, its folder is named after step 5"));
}

TEST_F(Resume, NeverSavesWhatIsNotFinite) {
  const CliResult result = train({"--learning-rate", "1e38", "--warmup", "0"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("headroom: step "));
  EXPECT_THAT(result.err, HasSubstr("not finite"));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_FALSE(latest_checkpoint(folder_ / "run").has_value());
  const CliResult one = train({"--learning-rate", "1e38", "--steps", "1", "--overwrite"});
  EXPECT_EQ(one.code, 1);
  EXPECT_THAT(one.err,
              HasSubstr("step 1: tensor \"model.embed_tokens.weight\" is not finite, so it is not saved; "
                        "there is no checkpoint yet"));
}

TEST_F(Resume, ChecksWhatItWillWriteBeforeItTrains) {
  put(folder_ / "caf\xe9.txt", std::string(4096, 'x'));
  const CliResult result = train({"--data", path("caf\xe9.txt")});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("is no UTF-8"));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Resume, CarriesTheFilesOfTheModel) {
  make_model("model");
  trained({"--model", path("model"), "--save-every", "2"});
  const fs::path last = folder_ / "run/step-00000004";
  for (const char* file : {"tokenizer.json", "generation_config.json"})
    EXPECT_EQ(content(last / file), content(folder_ / "model" / file)) << file;
  const std::string whole = content(last / "model.safetensors");
  // The same command goes on without the folder that it began with.
  fs::remove_all(last);
  fs::remove_all(folder_ / "model");
  trained({"--model", path("model"), "--resume"});
  EXPECT_EQ(content(last / "model.safetensors"), whole);
  EXPECT_EQ(content(last / "tokenizer.json"), "{\"version\": \"1.0\"}");
  EXPECT_THAT(refused({"--model", path("other"), "--resume", "--steps", "8"}), HasSubstr("other"));
}

TEST_F(Resume, RefusesAModelThatIsNotFinite) {
  make_model("model");
  std::string text = content(folder_ / "model/model.safetensors");
  text.replace(text.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  put(folder_ / "model/model.safetensors", text);
  const CliResult result = train({"--model", path("model")});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("tensor model.norm.weight is not finite"));
}

// Tokens of 16 bits, all but one below 256.
std::string tokens_with(std::size_t count, std::size_t bad) {
  std::string bytes(2 * count, '\0');
  bytes[2 * bad] = bytes[2 * bad + 1] = '\xEA';
  return bytes;
}

TEST_F(Resume, DataThatTurnsOutBadDoesNotTakeTheStepsBeforeIt) {
  put(folder_ / "tokens.bin", tokens_with(64 * 200, 64 * 100));
  for (const std::string ranks : {"1", "3"}) {
    const CliResult result =
        train({"--data", path("tokens.bin"), "--steps", "300", "--ranks", ranks, "--overwrite"});
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("token 60138"));
    EXPECT_THAT(result.err, HasSubstr("training stopped after step"));
    EXPECT_THAT(result.err, HasSubstr("the last checkpoint is " + path("run/step-")));
    EXPECT_TRUE(latest_checkpoint(path("run")));
    fs::remove_all(path("run"));
  }
}

TEST_F(Resume, NothingIsRemovedForDataThatCannotBeRead) {
  trained({});
  const auto before = contents();
  put(folder_ / "tokens.bin", tokens_with(64 * 2, 70));
  const CliResult result = train({"--data", path("tokens.bin"), "--overwrite", "--batch", "2"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(contents(), before);
}

TEST_F(Resume, AFileWithTheNameOfACheckpointIsRefusedAtTheStart) {
  trained({});
  put(folder_ / "run/step-00000006", "mine");
  for (const char* word : {"--resume", "--overwrite"}) {
    EXPECT_THAT(refused({"--steps", "6", word}), HasSubstr("step-00000006 has the name of a checkpoint"));
  }
}

TEST_F(Resume, APageReplacesNothingButAPage) {
  put(folder_ / "book.txt", "It was the best of times, it was the worst of times, it was the age of wisdom.");
  EXPECT_THAT(refused({"--data", path("book.txt"), "--html", path("book.txt")}),
              HasSubstr("is not what --html writes"));
  EXPECT_THAT(content(folder_ / "book.txt"), HasSubstr("age of wisdom"));
  trained({"--html", path("page.html")});
  trained({"--html", path("page.html"), "--overwrite"});
}

}  // namespace
}  // namespace headroom
