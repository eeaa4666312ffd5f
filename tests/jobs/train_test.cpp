// Planning and training as a program of somebody else's does it, without the command line.
#include "headroom/jobs/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/temporary_folder.h"
#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "headroom/jobs/plan.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TrainingOptions options_in(const fs::path& out) {
  return {.model = "demo",
          .data = "recall",
          .context = 64,
          .budget_bytes = 64 * kMiB,
          .dtype = "f32",
          .optimizer = {.steps = 4},
          .out = out.string(),
          .threads = 2};
}

TEST(Training, APlanLeavesNoTraceAndARunTellsItsObserver) {
  const TemporaryFolder folder;
  const fs::path out = folder / "run";
  TrainingPlan plan = plan_training(options_in(out));
  EXPECT_TRUE(plan.fit.fits);
  EXPECT_FALSE(fs::exists(out));
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::vector<std::string> told;
  const TrainingResult result =
      train(plan, {.began =
                       [&] {
                         // From here on the folder is the run's own.
                         EXPECT_THAT(error_of([&] { (void)plan_training(options_in(out)); }),
                                     HasSubstr("one run at a time may write there"));
                         told.emplace_back("began");
                       },
                   .step = [&](const StepReport& report) { told.push_back(fmt::format("{}", report.step)); },
                   .stop = [&] { return told.size() == 3; }});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(told, ElementsAre("began", "1", "2"));
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.checkpoint, out / "step-00000002");
  EXPECT_LE(result.live_peak_bytes, plan.fit.needed_bytes);
  const auto parsed = nlohmann::json::parse(json(plan, result));
  EXPECT_EQ(parsed["last_step"], 2);
  EXPECT_EQ(parsed["planned_bytes"], plan.fit.layout.reserved(Space::device));
}

std::vector<double> losses_of(TrainingPlan& plan) {
  std::vector<double> losses;
  static_cast<void>(train(plan, {.step = [&](const StepReport& report) { losses.push_back(*report.loss); }}));
  return losses;
}

// Ranks that are threads train as one rank does, and one of them writes what one rank would.
TEST(Training, RanksTrainAsOneDoes) {
  const TemporaryFolder folder;
  const auto run = [&](std::int64_t ranks, std::int64_t steps) {
    TrainingOptions options = options_in(folder / fmt::format("{} ranks", ranks));
    options.batch = 2;
    options.accumulation = 2;
    options.pins.ranks = ranks;
    options.optimizer.steps = steps;
    options.threads = 1;
    TrainingPlan plan = plan_training(options);
    EXPECT_EQ(plan.ranks(), ranks);
    return losses_of(plan);
  };
  const std::vector<double> alone = run(1, 6);
  for (const std::int64_t ranks : {2, 3, 4}) {
    const std::vector<double> losses = run(ranks, 6);
    ASSERT_EQ(losses.size(), 6U);
    EXPECT_NEAR(losses.front(), alone.front(), 1e-6 * alone.front());
    EXPECT_NEAR(losses.back(), alone.back(), 1e-4 * alone.back());
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const auto size = [&](std::int64_t of) {
        return fs::file_size(folder / fmt::format("{} ranks", of) / "step-00000006" / file);
      };
      EXPECT_EQ(size(ranks), size(1)) << file;
    }
  }
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Sums over ranks have the same bits however the state is divided. Without clipping, which reads the norm,
// checkpoints have too.
TEST(Training, ADividedStateIsSavedWhole) {
  const TemporaryFolder folder;
  for (const std::string state : {"f32", "8bit"}) {
    const auto run = [&](const std::string& shard) {
      TrainingOptions options = options_in(folder / (state + shard));
      options.dtype = "bf16";
      options.state = state;
      options.batch = 2;
      options.optimizer.steps = 3;
      options.optimizer.max_norm = std::numeric_limits<double>::infinity();
      options.pins.ranks = 4;
      options.pins.ring = 2;
      options.pins.shard = shard;
      TrainingPlan plan = plan_training(options);
      const TrainingResult result = train(plan);
      EXPECT_EQ(result.rank_live_peak_bytes.size(), 4U);
      EXPECT_EQ(result.rank_live_peak_bytes.front(), result.live_peak_bytes);
      return result.checkpoint;
    };
    const fs::path whole = run("none");
    const fs::path divided = run("optimizer");
    for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors"}) {
      EXPECT_TRUE(contents(whole / file) == contents(divided / file)) << state << " " << file;
    }
  }
}

TEST(Training, ARunGoesOnWithAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  const auto run = [&](std::string_view name, std::int64_t ranks, std::int64_t last_step,
                       std::string shard = "none", std::optional<std::int64_t> ring = {},
                       std::optional<std::string> loss_ranks = {}) {
    TrainingOptions options = options_in(folder / name);
    options.pins.loss_ranks = std::move(loss_ranks);
    options.batch = 2;
    options.pins.ranks = ranks;
    options.pins.ring = ring;
    options.pins.shard = std::move(shard);
    options.resume = latest_checkpoint(options.out).has_value();
    TrainingPlan plan = plan_training(options);
    std::int64_t step = 0;
    return *train(plan, {.step = [&](const StepReport& report) { step = report.step; },
                         .stop = [&] { return step == last_step; }})
                .last_loss;
  };
  const double whole = run("whole", 1, 4);
  static_cast<void>(run("resumed", 3, 2));
  EXPECT_NEAR(run("resumed", 2, 4), whole, 1e-5 * whole);
  static_cast<void>(run("divided", 3, 1, "optimizer"));
  static_cast<void>(run("divided", 4, 2, "full"));
  static_cast<void>(run("divided", 4, 3, "optimizer", 2));
  EXPECT_NEAR(run("divided", 2, 4, "full", 1), whole, 1e-5 * whole);
  static_cast<void>(run("words", 3, 1, "full", {}, "vocabulary"));
  static_cast<void>(run("words", 4, 2, "full", 2, "tokens"));
  static_cast<void>(run("words", 2, 3, "optimizer", {}, "vocabulary"));
  EXPECT_NEAR(run("words", 1, 4), whole, 1e-5 * whole);
}

// A run takes the division that a plan with its costs and its budget takes, and a run that goes on keeps it.
TEST(Training, RanksDivideWhatThePlanChooses) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.batch = 4;
  options.pins.ranks = 4;
  options.threads = usable_cores();
  const TrainingFit chosen = plan_training(options).fit;
  EXPECT_EQ(chosen.divisions.size(), 18U);  // rings of 4, 2 and 1, with each sharding and way of the loss
  PlanOptions planned{.model = "demo",
                      .context = 64,
                      .batch = 4,
                      .budget_bytes = options.budget_bytes,
                      .dtype = "f32",
                      .pins = {.accumulation = 1, .ranks = 4}};
  const PlanQuestion question = plan_question(planned);
  EXPECT_EQ(answer_plan(question, plan_costs(question)).plan.step.strategy, chosen.strategy);
  options.pins.ring = 2;
  options.pins.shard = "full";
  options.pins.loss_ranks = "tokens";
  options.threads = 1;
  TrainingPlan plan = plan_training(options);
  std::int64_t step = 0;
  static_cast<void>(train(plan, {.step = [&](const StepReport& report) { step = report.step; },
                                 .stop = [&] { return step == 2; }}));
  plan.lock.reset();
  options.pins.ring.reset();
  options.pins.shard.reset();
  options.pins.loss_ranks.reset();
  options.resume = true;
  const TrainingPlan resumed = plan_training(options);
  EXPECT_EQ(resumed.fit.strategy.ring_ranks, 2);
  EXPECT_EQ(resumed.fit.strategy.sharding, Sharding::full);
  EXPECT_EQ(resumed.fit.strategy.loss_ranks, LossRanks::tokens);
  EXPECT_THAT(resumed.notes, testing::IsEmpty());
}

// The rank that fails is the one whose error is told, and the others do not wait for it.
TEST(Training, ARanksErrorEndsTheRun) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.pins.ranks = 3;
  options.save_every = 1;
  TrainingPlan plan = plan_training(options);
  const auto failing = [&](const StepReport& report) {
    check(report.step < 3, "the observer has seen enough");
  };
  EXPECT_EQ(error_of([&] { static_cast<void>(train(plan, {.step = failing})); }),
            "the observer has seen enough");
  EXPECT_EQ(latest_checkpoint(options.out), folder / "run" / "step-00000002");
}

// Stopped half way with the optimizer's state on the host, and gone on from there with it on the device.
TEST(Training, TheOptimizerOnTheHostIsTheSameRun) {
  const TemporaryFolder folder;
  const auto run = [&](std::string_view name, bool offload, std::int64_t last_step) {
    TrainingOptions options = options_in(folder / name);
    options.dtype = "bf16";
    options.resume = latest_checkpoint(options.out).has_value();
    TrainingPlan plan = plan_training(options);
    plan.fit.strategy = {.layers = {.recompute = plan.problem.config.layers},
                         .offload_optimizer = offload,
                         .compute_dtype = DType::bf16};
    plan.fit.layout = rehearse_training(plan.problem, plan.fit.strategy, CpuBackend(2).description());
    std::int64_t step = 0;
    return train(plan, {.step = [&](const StepReport& report) { step = report.step; },
                        .stop = [&] { return step == last_step; }})
        .checkpoint;
  };
  const fs::path whole = run("whole", false, 4);
  static_cast<void>(run("halves", true, 2));
  const fs::path halves = run("halves", false, 4);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_TRUE(content(halves / file) == content(whole / file)) << file;
}

// As programs saved it that had no other state.
TEST(Training, ACheckpointThatDoesNotNameItsStateIsF32) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.dtype = "bf16";
  TrainingPlan plan = plan_training(options);
  std::erase_if(plan.settings, [](const Setting& setting) { return setting.name == "state"; });
  static_cast<void>(train(plan));
  plan.lock.reset();
  options.resume = true;
  options.optimizer.steps = 5;
  EXPECT_TRUE(plan_training(options).checkpoint.has_value());
  options.state = "bf16";
  EXPECT_THAT(error_of([&] { (void)plan_training(options); }), HasSubstr("state f32 (this run: bf16)"));
}

TEST(Training, SaysWhereANarrowStateWouldFit) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.dtype = "bf16";
  options.state = "bf16";
  options.budget_bytes = plan_training(options).fit.needed_bytes;
  options.state = "f32";
  EXPECT_THAT(error_of([&] { (void)plan_training(options); }), testing::EndsWith("; --state bf16 would fit"));
  options.budget_bytes = 4096;
  EXPECT_THAT(error_of([&] { (void)plan_training(options); }),
              testing::Not(HasSubstr("--state bf16 would fit")));
}

// A run of a few small steps, which goes on where it has been before.
class SmallRun {
 public:
  explicit SmallRun(std::int64_t accumulation = 1) { options.accumulation = accumulation; }

  TrainingResult run(const fs::path& out, const TrainingObserver& observer = {}) {
    options.out = out.string();
    options.resume = latest_checkpoint(out).has_value();
    TrainingPlan plan = plan_training(options);
    return train(plan, observer);
  }

  TrainingOptions options = options_in("");
};

// Stopped before each micro-step of a run, one after the other, and gone on from there.
TEST(Training, StoppedInTheMiddleOfAnAccumulationItContinuesWithTheSameBits) {
  const TemporaryFolder folder;
  SmallRun run(3);
  const TrainingResult whole = run.run(folder / "whole");
  EXPECT_FALSE(whole.interrupted);
  for (int micro_step = 0; micro_step < 12; ++micro_step) {
    SCOPED_TRACE(micro_step);
    const fs::path out = folder / fmt::format("stopped-{}", micro_step);
    int asked = 0;
    const TrainingResult stopped = run.run(out, {.stop = [&] { return asked++ == micro_step; }});
    EXPECT_TRUE(stopped.interrupted);
    EXPECT_FALSE(stopped.held_out_loss.has_value());
    EXPECT_EQ(stopped.last_step, micro_step / 3);
    EXPECT_EQ(stopped.finished_a_step(), micro_step >= 3);
    EXPECT_EQ(stopped.last_loss.has_value(), micro_step >= 3);
    EXPECT_EQ(stopped.checkpoint,
              micro_step < 3 ? fs::path() : out / fmt::format("step-{:08}", micro_step / 3));
    const TrainingResult rest = run.run(out);
    EXPECT_EQ(rest.first_step, micro_step / 3 + 1);
    EXPECT_EQ(rest.held_out_loss, whole.held_out_loss);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
      EXPECT_TRUE(content(rest.checkpoint / file) == content(whole.checkpoint / file)) << file;
    EXPECT_EQ(std::ranges::count(content(out / "metrics.jsonl"), '\n'), 4);
  }
}

// A run that is resumed and stopped at once still says where its checkpoint is.
TEST(Training, ARunThatFinishesNoStepSaysWhereItGoesOn) {
  const TemporaryFolder folder;
  SmallRun run;
  std::int64_t step = 0;
  const auto listen = [&](const StepReport& report) { step = report.step; };
  const TrainingResult first = run.run(folder / "run", {.step = listen, .stop = [&] { return step == 2; }});
  const TrainingResult second = run.run(folder / "run", {.step = listen, .stop = [] { return true; }});
  EXPECT_FALSE(second.finished_a_step());
  EXPECT_EQ(second.checkpoint, first.checkpoint);
  EXPECT_EQ(second.checkpoint.filename(), "step-00000002");
}

// Whoever listens takes 0.2 seconds, and so may saving: none of the step's business.
TEST(Training, TokensPerSecondAreOverTheStepsOwnTime) {
  const TemporaryFolder folder;
  constexpr double kPause = 0.2;
  SmallRun run(2);
  run.options.save_every = 1;
  std::vector<StepReport> reports;
  static_cast<void>(run.run(folder / "run", {.step = [&](const StepReport& report) {
                              reports.push_back(report);
                              std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
                            }}));
  ASSERT_EQ(reports.size(), 4U);
  for (std::size_t i = 1; i < reports.size(); ++i) {
    const double own = 2 * 64 / reports[i].tokens_per_second;
    EXPECT_GT(own, 0);
    EXPECT_LE(own, reports[i].seconds - reports[i - 1].seconds - kPause);
  }
}

TEST(Training, SaysThatTheFolderIsGoneBeforeItSaves) {
  const TemporaryFolder folder;
  SmallRun run;
  run.options.save_every = 2;
  const auto remove_after = [&](std::int64_t step) {
    return [&folder, step](const StepReport& report) {
      if (report.step == step) fs::remove_all(folder / "run");
    };
  };
  for (const std::int64_t step : {1, 2, 4}) {  // noticed at the next line, at a save, at the last save
    EXPECT_THAT(error_of([&] { static_cast<void>(run.run(folder / "run", {.step = remove_after(step)})); }),
                HasSubstr("run is gone"))
        << step;
    EXPECT_FALSE(fs::exists(folder / "run")) << step;
  }
}

TEST(Training, ALineThatCannotBeWrittenEndsTheRunAfterItIsSaved) {
  const TemporaryFolder folder;
  SmallRun run;
  const auto put_a_link = [&](const StepReport& report) {
    if (report.step != 2) return;
    fs::remove(folder / "run/metrics.jsonl");
    fs::create_symlink("elsewhere", folder / "run/metrics.jsonl");
  };
  const auto run_it = [&] { static_cast<void>(run.run(folder / "run", {.step = put_a_link})); };
  const std::string message = error_of(run_it);
  EXPECT_THAT(message, HasSubstr("metrics.jsonl: it is a symbolic link"));
  EXPECT_THAT(message, HasSubstr("training stopped after step 3; the last checkpoint is " +
                                 (folder / "run/step-00000003").string()));
  EXPECT_EQ(latest_checkpoint(folder / "run"), folder / "run/step-00000003");
  fs::remove_all(folder / "run");
  EXPECT_EQ(kind_of(run_it), ErrorKind::runtime);
}

// Where the checkpoints cannot be listed, what went wrong before is said all the same.
TEST(Training, AnErrorIsNotReplacedByThatOfItsMessage) {
  const TemporaryFolder folder;
  SmallRun run;
  run.options.optimizer.learning_rate = 1e38;
  const auto put_a_file = [&](const StepReport&) {
    fs::rename(folder / "run", folder / "away");
    put(folder / "run", "");
  };
  EXPECT_THAT(
      error_of([&] { static_cast<void>(run.run(folder / "run", {.step = put_a_file})); }),
      testing::AllOf(HasSubstr("not finite"), HasSubstr("its checkpoints cannot be listed (cannot read")));
}

TEST(Training, PinnedPartsOfTheStrategyArePlanned) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.pins = {
      .layers = "recompute:1", .loss_chunk_tokens = 16, .mlp_tile_tokens = 32, .optimizer_state = "host"};
  const TrainingPlan plan = plan_training(options);
  EXPECT_EQ(plan.fit.strategy.layers, LayerPolicy{.recompute = 1});
  EXPECT_EQ(plan.fit.strategy.loss_chunk_tokens, 16);
  EXPECT_EQ(plan.fit.strategy.mlp_tile_tokens, 32);
  EXPECT_TRUE(plan.fit.strategy.offload_optimizer);
  options.pins.layers = "recompute:2";
  EXPECT_THAT(error_of([&] { (void)plan_training(options); }),
              HasSubstr("--layers 'recompute:2' are 2 layers, the model has 1"));
  options.host_budget_bytes = kGiB;
  EXPECT_THAT(error_of([&] { (void)plan_training(options); }),
              HasSubstr("--host-budget means nothing on cpu"));
}

TEST(Training, WithoutADTypeItIsWhatIsFastAndCanBeTrained) {
  const auto of = [](int compute_major) {
    DeviceDescription gpu;
    gpu.kind = DeviceKind::cuda;
    gpu.compute_major = compute_major;
    return default_training_dtype(gpu);
  };
  EXPECT_EQ(of(6), DType::f32);
  EXPECT_EQ(of(7), DType::f32);  // f16 is fast there
  EXPECT_EQ(of(9), DType::bf16);
}

TEST(Training, RefusesDTypesThatTheDeviceDoesNotTrainIn) {
  DeviceDescription gpu;
  gpu.kind = DeviceKind::cuda;
  gpu.name = "Tesla T4";
  gpu.compute_major = 7;
  gpu.compute_minor = 5;
  check_training_dtype(gpu, DType::f32);
  EXPECT_EQ(
      error_of([&] { check_training_dtype(gpu, DType::bf16); }),
      "dtype 'bf16' cannot be trained in on Tesla T4, whose compute capability is 7.5; use f32, or a GPU "
      "from 8.0 on");
  gpu.compute_major = 8;
  check_training_dtype(gpu, DType::bf16);
  check_training_dtype(describe_cpu(), DType::bf16);
  EXPECT_EQ(error_of([&] { check_training_dtype(gpu, DType::f16); }),
            "dtype 'f16' cannot be trained in; use f32 or bf16");
}

TEST(Training, WhatDoesNotFitIsAnErrorOfMemory) {
  const TemporaryFolder folder;
  TrainingOptions options = options_in(folder / "run");
  options.budget_bytes = kMiB;
  try {
    (void)plan_training(options);
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
  }
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Planning, IsAnsweredAsAValueAsJsonAndAsAPage) {
  const PlanQuestion question =
      plan_question({.model = "qwen3-0.6b", .context = 4096, .device = "h100", .compare = true});
  const PlanAnswer answer = answer_plan(question, plan_costs(question));
  EXPECT_TRUE(answer.plan.fits);
  EXPECT_GE(answer.max_context, 4096);
  EXPECT_EQ(answer.compared.back().bytes, answer.plan.step.arena_bytes + answer.plan.step.host_bytes);
  const auto parsed = nlohmann::json::parse(json(answer));
  EXPECT_EQ(parsed["device"], "h100");
  EXPECT_EQ(parsed["arena_bytes"], answer.plan.step.arena_bytes);
  EXPECT_THAT(html(plan_page(answer)), HasSubstr(fmt::format("\"bytes\":{}", answer.plan.step.arena_bytes)));
}

}  // namespace
}  // namespace headroom
