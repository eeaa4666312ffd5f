#include "cli/program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "headroom/train/checkpoint.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kTrain =
    "exec $headroom train --model demo --data recall --context 64 --dtype f32 --threads 1 --out run ";

// So many whole lines of metrics, and every one of them a step.
std::int64_t steps_in_metrics(const fs::path& run) {
  std::istringstream text(content(run / "metrics.jsonl"));
  std::int64_t step = 0;
  for (std::string line; std::getline(text, line) && !text.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object() && json.value("step", std::int64_t{0}) == step + 1) << line;
    ++step;
  }
  return step;
}

void expect_one_line(const std::string& err) {
  EXPECT_THAT(err, StartsWith("headroom: "));
  EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
}

class Stopped : public testing::TestWithParam<int> {};

TEST_P(Stopped, SavesAndEnds) {
  const TemporaryFolder folder;
  Program program(folder, std::string(kTrain) + "--steps 1000000 --json >out.json");
  ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= 3; }));
  program.signal(GetParam());
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  const auto json = nlohmann::json::parse(content(folder / "out.json"));
  EXPECT_EQ(json["interrupted"], true);
  const auto latest = latest_checkpoint(folder / "run");
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(read_train_state(*latest).step, json["last_step"]);
  EXPECT_EQ(steps_in_metrics(folder / "run"), json["last_step"]);
}

// A step of these would take days.
TEST_P(Stopped, IsAnsweredInTheMiddleOfAnAccumulation) {
  const TemporaryFolder folder;
  Program program(folder, std::string(kTrain) + "--steps 2 --accumulation 100000000 >out.txt");
  ASSERT_TRUE(program.runs_until([&] { return fs::exists(folder / "run/metrics.jsonl"); }));
  program.signal(GetParam());
  EXPECT_EQ(program.wait().code, 0);
  EXPECT_THAT(content(folder / "out.txt"),
              HasSubstr("stopped before step 1 was finished; there is no checkpoint"));
  EXPECT_FALSE(latest_checkpoint(folder / "run").has_value());
}

INSTANTIATE_TEST_SUITE_P(Program, Stopped, testing::Values(SIGINT, SIGTERM, SIGHUP));

// As timeout and closing shells do.
TEST(Program, RequestsToEndMayComeTwice) {
  for (const int number : {SIGTERM, SIGHUP}) {
    const TemporaryFolder folder;
    Program program(folder, std::string(kTrain) + "--steps 1000000 --json >out.json");
    ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= 1; }));
    program.signal(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // while it saves
    program.signal(number);
    EXPECT_EQ(program.wait().code, 0);
    EXPECT_TRUE(latest_checkpoint(folder / "run").has_value());
  }
}

TEST(Program, OutlivesItsTerminalUnderNohup) {
  const TemporaryFolder folder;
  Program program(folder, "trap '' HUP; " + std::string(kTrain) + "--steps 1000000 --json >out.json");
  ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= 1; }));
  program.signal(SIGHUP);
  const std::int64_t then = steps_in_metrics(folder / "run");
  ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= then + 3; }));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 0);
  EXPECT_TRUE(latest_checkpoint(folder / "run").has_value());
}

// A job that a shell script starts in the background has SIGINT ignored.
TEST(Program, GoesOnAtASignalThatIsIgnored) {
  for (const auto& [name, number, other] :
       {std::tuple{"INT", SIGINT, SIGTERM}, std::tuple{"TERM", SIGTERM, SIGINT}}) {
    const TemporaryFolder folder;
    Program program(folder, fmt::format("trap '' {}; {}--steps 1000000 --json >out.json", name, kTrain));
    ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= 1; }));
    program.signal(number);
    const std::int64_t then = steps_in_metrics(folder / "run");
    ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= then + 3; }));
    program.signal(other);
    EXPECT_EQ(program.wait().code, 0);
    EXPECT_TRUE(latest_checkpoint(folder / "run").has_value());
  }
}

// The folder of a run may have the name of the model.
TEST(Program, ABuiltInNameIsTheBuiltInModel) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& more) {
    return run_program(folder,
                       "exec $headroom train --model demo --data recall --context 64 --threads 1 "
                       "--out demo >out.txt " +
                           more);
  };
  EXPECT_EQ(train("--steps 1").err, "");
  EXPECT_EQ(train("--steps 2 --resume").err, "");
  EXPECT_EQ(latest_checkpoint(folder / "demo"), folder / "demo/step-00000002");
}

// The reader takes a few lines and goes.
TEST(Program, AClosedPipeLosesNothing) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  Program program(folder, std::string(kTrain) + "--steps 10000 >pipe");
  const int reader = open((folder / "pipe").c_str(), O_RDONLY);
  ASSERT_GE(reader, 0);
  std::string text;
  for (char character = 0; text.find("step 1 of") == std::string::npos && read(reader, &character, 1) == 1;)
    text += character;
  close(reader);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.code, 1);
  expect_one_line(result.err);
  EXPECT_THAT(result.err,
              HasSubstr("cannot write standard output: Broken pipe; training stopped after step "));
  const auto latest = latest_checkpoint(folder / "run");
  ASSERT_TRUE(latest.has_value());
  EXPECT_THAT(result.err, HasSubstr("--resume goes on from run/" + latest->filename().string()));
  EXPECT_EQ(read_train_state(*latest).step, steps_in_metrics(folder / "run"));
}

TEST(Program, ErrorsOfStandardOutputAreErrors) {
  const TemporaryFolder folder;
  for (const char* arguments :
       {"--help", "--version", "train --help", "devices", "devices --json",
        "plan --model demo --context 256 --json", "plan --program ring-softmax --context 256 --budget 1GiB",
        "profile --model demo --context 64 --steps 1 --json", "verify memory --steps 30",
        "verify loss --every 1000 --json", "verify attention --every 1000",
        "bench memory --traces 1 --blocks 50 --large-events 200",
        "bench loss --tokens 32 --hidden 8 --vocab 100 --steps 1",
        "bench attention --seq 32 --head-dim 8 --heads 1 --impl tiled --steps 1 --json",
        "bench step --model demo --context 64 --steps 1"}) {
    const ProgramResult result = run_program(folder, fmt::format("exec $headroom {} >/dev/full", arguments));
    EXPECT_EQ(result.code, 1) << arguments;
    EXPECT_EQ(result.err, "headroom: cannot write standard output: No space left on device\n") << arguments;
  }
  // What failed otherwise keeps its code.
  const ProgramResult result =
      run_program(folder, "exec $headroom plan --model demo --context 256 --budget 1MiB --json >/dev/full");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("cannot write standard output"));
}

TEST(Program, TrainingIsSavedBeforeItsOutputFails) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(folder, std::string(kTrain) + "--steps 2 --html page.html --json >/dev/full");
  EXPECT_EQ(result.code, 1);
  expect_one_line(result.err);
  EXPECT_EQ(latest_checkpoint(folder / "run"), folder / "run/step-00000002");
  EXPECT_EQ(steps_in_metrics(folder / "run"), 2);
  EXPECT_THAT(content(folder / "page.html"), HasSubstr("after step 2"));
  // The plan cannot be read by anybody: nothing is trained.
  EXPECT_EQ(run_program(folder, "rm -r run; " + std::string(kTrain) + "--steps 2 >/dev/full").code, 1);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Program, NothingLandsInFilesWhereDescriptorsAreClosed) {
  const TemporaryFolder folder;
  for (const char* closed : {">&-", "<&- >&-", "<&- >&- 2>&-", "2>&- >out.txt", "<&- >out.txt"}) {
    SCOPED_TRACE(closed);
    const bool json_lost = std::string_view(closed).find(">out.txt") == std::string_view::npos;
    const ProgramResult result =
        run_program(folder, fmt::format("rm -rf run; {} --steps 2 --json {}", kTrain, closed));
    EXPECT_EQ(result.code, json_lost ? 1 : 0);
    if (json_lost && std::string_view(closed).find("2>") == std::string_view::npos) {
      EXPECT_EQ(result.err, "headroom: cannot write standard output: Bad file descriptor\n");
    }
    EXPECT_EQ(steps_in_metrics(folder / "run"), 2);
    EXPECT_EQ(std::ranges::count(content(folder / "run/metrics.jsonl"), '\n'), 2);
    const auto latest = latest_checkpoint(folder / "run");
    ASSERT_TRUE(latest.has_value());
    EXPECT_EQ(read_train_state(*latest).step, 2);
  }
  // Without --json the plan is what cannot be written.
  EXPECT_EQ(run_program(folder, "rm -rf run; " + std::string(kTrain) + "--steps 2 >&-").code, 1);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Program, SaysThatTheFolderIsGone) {
  const TemporaryFolder folder;
  Program program(folder, std::string(kTrain) + "--steps 1000000 >out.txt");
  ASSERT_TRUE(program.runs_until([&] { return steps_in_metrics(folder / "run") >= 2; }));
  fs::rename(folder / "run", folder / "away");
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.code, 1);
  expect_one_line(result.err);
  EXPECT_THAT(result.err, HasSubstr("run is gone: it was removed, renamed or replaced"));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Program, RefusesMetricsThatAreNoFileAtOnce) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      folder, "mkdir run; mkfifo run/metrics.jsonl; " + std::string(kTrain) + "--steps 2 >out.txt");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "headroom: cannot write run/metrics.jsonl: it is a named pipe, not a regular file\n");
  EXPECT_EQ(content(folder / "out.txt"), "");
}

}  // namespace
}  // namespace headroom
