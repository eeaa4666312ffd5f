#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <tuple>

#include "cli/run.h"
#include "core/temporary_folder.h"
#include "headroom/core/bytes.h"
#include "headroom/core/files.h"
#include "headroom/train/checkpoint.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Train : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("headroom-train-{}", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }
  // A small run with further arguments.
  [[nodiscard]] CliResult train(std::string_view out, const std::vector<std::string>& more) const {
    return train_on("recall", "256", out, more);
  }
  [[nodiscard]] CliResult train_on(const std::string& data, const std::string& context, std::string_view out,
                                   const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"train",     "--model", "demo",  "--data", data,
                                          "--context", context,   "--out", path(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments);
  }
  [[nodiscard]] std::string read(const fs::path& file) const { return read_small_file(file, 64 << 20); }

  fs::path folder_;
};

TEST_F(Train, WritesAPageToLookAt) {
  const CliResult result =
      train("run", {"--steps", "2", "--budget", "64MiB", "--html", path("page.html"), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const std::string page = read(folder_ / "page.html");
  EXPECT_THAT(page, HasSubstr("Training demo at 256 tokens"));
  EXPECT_THAT(page, HasSubstr(fmt::format("\"bytes\":{}", json["live_peak_bytes"].get<std::int64_t>())));
  EXPECT_THAT(page, HasSubstr(fmt::format("{:.4f}", json["last_loss"].get<double>())));
  EXPECT_THAT(page, HasSubstr("Memory of micro-step"));
}

TEST_F(Train, TheBudgetLineSaysWhatItCovers) {
  const CliResult text = train("text", {"--steps", "1", "--budget", "64MiB"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::ContainsRegex("budget 64 MiB for the arena and host staging; the process "
                                               "itself holds [0-9.]+ MiB besides\n"));
  const auto json = nlohmann::json::parse(train("json", {"--steps", "1", "--budget", "64MiB", "--json"}).out);
  EXPECT_GT(json["process_bytes"], kMiB);
}

TEST_F(Train, RefusesAPageInNoFolderBeforeItTrains) {
  const CliResult result = train("run", {"--steps", "2", "--html", path("no/page.html")});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no folder"));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Train, PlansTrainsAndLeavesAModel) {
  const CliResult result = train("run", {"--steps", "3", "--budget", "64MiB"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("with scores and logits held it would take"));
  EXPECT_THAT(result.out, HasSubstr("step 3 of 3"));
  const fs::path checkpoint = folder_ / "run" / "step-00000003";
  for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
    EXPECT_TRUE(fs::exists(checkpoint / file)) << file;
  }
  std::ifstream lines(folder_ / "run" / "metrics.jsonl");
  std::int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["step"], ++step);
    for (const char* key : {"loss", "labels", "learning_rate", "grad_norm", "tokens", "seconds",
                            "tokens_per_second", "live_peak_bytes"}) {
      EXPECT_TRUE(json[key].is_number()) << key;
    }
  }
  EXPECT_EQ(step, 3);
  // What it left is a model to start from.
  const CliResult again = run_command({"train", "--model", checkpoint.string(), "--data", "recall",
                                       "--context", "256", "--steps", "1", "--out", path("again"), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = nlohmann::json::parse(again.out);
  EXPECT_EQ(json["last_step"], 1);
  EXPECT_GE(json["budget_bytes"], json["planned_bytes"]);
}

TEST_F(Train, AResumedRunContinuesWithTheSameBits) {
  for (const char* dtype : {"f32", "bf16"}) {
    fs::remove_all(folder_);
    ASSERT_EQ(
        train("whole", {"--steps", "6", "--save-every", "2", "--keep-last", "9", "--dtype", dtype}).code, 0);
    fs::create_directories(folder_ / "half");
    fs::copy(folder_ / "whole" / "step-00000002", folder_ / "half" / "step-00000002",
             fs::copy_options::recursive);
    fs::copy(folder_ / "whole" / "metrics.jsonl", folder_ / "half" / "metrics.jsonl");
    // Also with a budget that makes layers recompute.
    const CliResult result =
        train("half", {"--steps", "6", "--dtype", dtype, "--resume", "--budget", "12MiB"});
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      EXPECT_TRUE(read(folder_ / "whole" / "step-00000006" / file) ==
                  read(folder_ / "half" / "step-00000006" / file))
          << dtype << " " << file;
    }
    std::ifstream lines(folder_ / "half" / "metrics.jsonl");
    EXPECT_EQ(std::count(std::istreambuf_iterator<char>(lines), {}, '\n'), 6);
  }
}

TEST_F(Train, ResumeRefusesAnotherRun) {
  ASSERT_EQ(train("run", {"--steps", "4", "--save-every", "2"}).code, 0);
  fs::remove_all(folder_ / "run" / "step-00000004");
  CliResult result = train("run", {"--steps", "4"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--resume goes on from it"));
  result = train("run", {"--steps", "4", "--resume", "--learning-rate", "0.5"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("learning_rate 0.0003 (this run: 0.5)"));
  result = train("run", {"--steps", "2", "--resume"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("nothing is left"));
  result = train("none", {"--steps", "4", "--resume"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("has no checkpoint"));
  EXPECT_EQ(latest_checkpoint(folder_ / "run")->filename(), "step-00000002");
}

TEST_F(Train, CtrlCSavesAndLeaves) {
  std::thread interrupt([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    kill(getpid(), SIGINT);
  });
  const CliResult result = train("run", {"--steps", "1000000", "--json"});
  interrupt.join();
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["interrupted"], true);
  const auto latest = latest_checkpoint(folder_ / "run");
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(read_train_state(*latest).step, json["last_step"]);
}

// The same sequences in one batch or in several: documents leave them different numbers of labels, and every
// label counts the same.
TEST_F(Train, TheLossIsTheMeanOverAllLabelsOfAStep) {
  fs::create_directories(folder_ / "documents");
  for (int i = 0; i < 40; ++i) {
    const std::size_t bytes = i % 4 == 0 ? 90 : 1;  // most documents are one byte, which predicts nothing
    std::ofstream(folder_ / "documents" / fmt::format("{}", i))
        << std::string(bytes, static_cast<char>('a' + i % 26));
  }
  const auto metrics = [&](std::string_view out, const char* batch, const char* accumulation) {
    const CliResult result =
        train_on(path("documents"), "30", out,
                 {"--steps", "4", "--batch", batch, "--accumulation", accumulation, "--dtype", "f32"});
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  };
  const auto whole = metrics("whole", "6", "1");
  ASSERT_EQ(whole.size(), 4U);
  std::set<std::int64_t> labels;
  for (const auto& [out, batch, accumulation] :
       {std::tuple{"halves", "3", "2"}, std::tuple{"thirds", "2", "3"}, std::tuple{"sixths", "1", "6"}}) {
    const auto parts = metrics(out, batch, accumulation);
    ASSERT_EQ(parts.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(fmt::format("{}, step {}", out, i + 1));
      EXPECT_EQ(parts[i]["labels"], whole[i]["labels"]);
      EXPECT_NEAR(parts[i]["loss"].get<double>(), whole[i]["loss"].get<double>(), 1e-4);
      EXPECT_NEAR(parts[i]["grad_norm"].get<double>(), whole[i]["grad_norm"].get<double>(), 1e-3);
      labels.insert(parts[i]["labels"].get<std::int64_t>());
    }
  }
  EXPECT_GT(labels.size(), 1U);  // they do differ
}

TEST_F(Train, AStepWithoutALabelIsPassedOverAndSaid) {
  fs::create_directories(folder_ / "bytes");
  for (int i = 0; i < 16; ++i) std::ofstream(folder_ / "bytes" / fmt::format("{}", i)) << "x";
  const CliResult result = train_on(path("bytes"), "8", "run", {"--steps", "3", "--html", path("page.html")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("note    step 1 has no labelled token, so nothing was updated"));
  EXPECT_THAT(result.out, Not(HasSubstr("step 2 has no labelled token")));  // once is enough
  EXPECT_THAT(result.out, HasSubstr("step 3 of 3  loss none"));
  EXPECT_THAT(result.out, HasSubstr("done after step 3: loss none -> none"));
  EXPECT_THAT(result.out, HasSubstr("passed over: 3 of 3 steps had no label and changed nothing"));
  EXPECT_THAT(read(folder_ / "page.html"), HasSubstr("no step had a label, after step 3"));
  std::ifstream lines(folder_ / "run" / "metrics.jsonl");
  std::int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["step"], ++step);
    EXPECT_EQ(json["tokens"], 8 * step);
    EXPECT_EQ(json["labels"], 0);
    EXPECT_TRUE(json["loss"].is_null());
    EXPECT_TRUE(json["grad_norm"].is_null());
  }
  EXPECT_EQ(step, 3);
  const CliResult again = train_on(path("bytes"), "8", "again", {"--steps", "1", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = nlohmann::json::parse(again.out);
  EXPECT_TRUE(json["first_loss"].is_null());
  EXPECT_TRUE(json["last_loss"].is_null());
  EXPECT_EQ(json["steps_without_labels"], 1);
  // The weights are those that the run began with, and moments there are none.
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read(folder_ / "run" / "step-00000003" / file),
              read(folder_ / "again" / "step-00000001" / file));
}

TEST_F(Train, BytesOfATextAreTokensOfAModelOfWordsOnlyWhereThatIsSaid) {
  std::ofstream(folder_ / "book.txt") << std::string(1000, 'x');
  const std::vector<std::string> arguments = {
      "train",   "--model", "qwen3-0.6b", "--data", path("book.txt"), "--context", "256",
      "--steps", "1",       "--budget",   "1MiB",   "--out",          path("run")};
  CliResult result = run_command(arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("a model with 151,936 words; give the tokens as a .bin, or --bytes"));
  std::vector<std::string> with_bytes = arguments;
  with_bytes.emplace_back("--bytes");
  result = run_command(with_bytes);
  EXPECT_EQ(result.code, 3) << result.err;  // it is the budget now
}

TEST_F(Train, TooSmallABudgetAllocatesNothing) {
  const CliResult result = train("run", {"--steps", "1", "--budget", "1MiB"});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("the smallest that would work is"));
  EXPECT_THAT(result.err, HasSubstr("its largest items: "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  // That budget does work.
  const std::size_t at = result.err.find("would work is ") + 14;
  std::string bytes = result.err.substr(at, result.err.find(';', at) - at);
  std::erase(bytes, ',');
  EXPECT_EQ(train("run", {"--steps", "1", "--budget", bytes}).code, 0) << bytes;
}

TEST_F(Train, StopsWhereNumbersStopBeingFinite) {
  const CliResult result =
      train("run", {"--steps", "20", "--save-every", "1", "--learning-rate", "1e30", "--warmup", "0"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("headroom: step "));
  EXPECT_THAT(result.err, HasSubstr("not finite"));
  EXPECT_THAT(result.err, HasSubstr("the last checkpoint is"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_TRUE(latest_checkpoint(folder_ / "run").has_value());
}

TEST_F(Train, BadInputIsOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"train", "--model", "gpt-2", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x")},
       "use one of demo"},
      {{"train", "--model", "demo", "--data", path("none.txt"), "--context", "256", "--steps", "1", "--out",
        path("x")},
       "none.txt"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "4", "--steps", "1", "--out", path("x")},
       "the least is"},
      {{"train", "--model", "demo", "--data", "recall:keys=64", "--context", "256", "--steps", "1", "--out",
        path("x")},
       "vocab"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--attention", "full"},
       "add causal"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--attention", "windows:3"},
       "window:N"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--dtype", "f16"},
       "f32 or bf16"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--clip", "0"},
       "from 1e-30"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--bytes"},
       "has tokens of its own"},
      {{"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1", "--out",
        path("x"), "--batch", "2147483647", "--accumulation", "2147483647"},
       "batch 2147483647 x context 256 x accumulation 2147483647 is a step of 2^63 tokens or more"},
  };
  for (const auto& [arguments, part] : cases) {
    const CliResult result = run_command(arguments);
    EXPECT_EQ(result.code, 2) << part;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(fs::exists(path("x")));
  }
}

}  // namespace
}  // namespace headroom
