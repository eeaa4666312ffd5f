#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run.h"
#include "core/temporary_folder.h"
#include "headroom/model.h"

namespace headroom {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Rates of the machine that runs the tests are none of their business.
class PlanCommand : public testing::Test {
 protected:
  void SetUp() override { setenv("HEADROOM_RATES", (folder_ / "rates.json").c_str(), 1); }
  void TearDown() override { unsetenv("HEADROOM_RATES"); }

  TemporaryFolder folder_;
};

TEST_F(PlanCommand, SaysWhatTrainTakes) {
  const CliResult plan =
      run_command({"plan", "--model", "demo", "--context", "256", "--budget", "64MiB", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const json planned = json::parse(plan.out);
  EXPECT_TRUE(planned["fits"]);
  EXPECT_EQ(planned["reserved_bytes"], planned["arena_bytes"]);
  EXPECT_LE(planned["live_peak_bytes"], planned["arena_bytes"]);
  EXPECT_EQ(planned["by_stage"].size(), 7u);
  std::int64_t sum = 0;
  for (const auto& [category, bytes] : planned["by_category"].items()) sum += bytes.get<std::int64_t>();
  EXPECT_EQ(sum, planned["live_peak_bytes"]);
  EXPECT_GT(planned["max_context"], 256);
  EXPECT_GT(planned["step_seconds"], 0);
  EXPECT_FALSE(planned["advice"].empty());

  const CliResult train =
      run_command({"train", "--model", "demo", "--data", "recall", "--context", "256", "--steps", "1",
                   "--budget", "64MiB", "--out", (folder_ / "run").string(), "--json"});
  ASSERT_EQ(train.code, 0) << train.err;
  const json trained = json::parse(train.out);
  EXPECT_EQ(trained["planned_bytes"], planned["arena_bytes"]);
  EXPECT_EQ(trained["live_peak_bytes"], planned["live_peak_bytes"]);
  EXPECT_EQ(trained["strategy"], planned["strategy"]);
}

TEST_F(PlanCommand, TheStateByTensor) {
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "demo", "--context", "256", "--device", "h200"});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const json planned = json::parse(plan({"--state", "8bit", "--json"}));
  EXPECT_EQ(planned["state"], "8bit");
  ASSERT_EQ(planned["state_bytes"].size(), 4u);
  EXPECT_EQ(planned["state_bytes"][3]["tensor"], "second moments");
  EXPECT_EQ(planned["state_bytes"][3]["where"], "device");
  EXPECT_THAT(plan({}), testing::ContainsRegex("state f32 .*\n.*weights .* 2\\.00  device\n"));
  EXPECT_THAT(plan({}), HasSubstr("master weights"));
  EXPECT_THAT(plan({"--state", "bf16"}), Not(HasSubstr("master weights")));
  // PyTorch is asked in the same precision, and the words say which.
  EXPECT_THAT(plan({"--runtime", "pytorch"}),
              HasSubstr("f32 parameters, gradients and moments under autocast"));
  EXPECT_THAT(plan({"--runtime", "pytorch", "--state", "bf16"}),
              HasSubstr("AdamW with bf16 parameters, gradients and moments"));
  EXPECT_THAT(plan({"--runtime", "pytorch", "--state", "8bit"}), HasSubstr("8-bit moments"));
}

TEST_F(PlanCommand, SaysWhatWouldFit) {
  const CliResult result =
      run_command({"plan", "--model", "demo", "--context", "65536", "--budget", "32MiB"});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("does not fit: the least is "));
  EXPECT_THAT(result.err, HasSubstr("tokens of context"));
  EXPECT_EQ(
      run_command({"plan", "--model", "demo", "--context", "65536", "--budget", "32MiB", "--json"}).code, 3);
}

TEST_F(PlanCommand, TheDTypeFollowsTheDevice) {
  const auto plan = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "demo", "--context", "1024", "--json"});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  EXPECT_EQ(plan({"--device", "gtx-1080"})["dtype"], "f32");
  EXPECT_FALSE(plan({"--device", "gtx-1080"}).contains("warning"));
  EXPECT_EQ(plan({"--device", "h200"})["dtype"], "bf16");
  EXPECT_THAT(plan({"--device", "gtx-1080", "--dtype", "f16"})["warning"].get<std::string>(),
              HasSubstr("1/64"));
}

TEST_F(PlanCommand, PlanAndTrainWarnOfTheSameDType) {
  const std::string page = (folder_ / "plan.html").string();
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "demo", "--context", "64", "--html", page});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto train = [&](const std::string& dtype, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"train", "--model", "demo", "--data", "recall", "--context", "64", "--steps", "1", "--dtype",
                 dtype, "--out", (folder_ / "run" / fmt::format("{}{}", dtype, more.size())).string()});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const json planned = json::parse(plan({"--dtype", "bf16", "--json"}));
  const auto warning = planned["warning"].get<std::string>();
  EXPECT_THAT(warning, HasSubstr("widened to f32"));
  EXPECT_THAT(content(page), HasSubstr("widened to f32"));
  EXPECT_THAT(plan({"--dtype", "bf16"}), HasSubstr("note      " + warning + "\n"));
  EXPECT_THAT(train("bf16", {}), HasSubstr("note    " + warning + "\n"));
  EXPECT_EQ(json::parse(train("bf16", {"--json"}))["warning"], warning);
  EXPECT_FALSE(json::parse(plan({"--json"})).contains("warning"));
  EXPECT_FALSE(json::parse(train("f32", {"--json"})).contains("warning"));
  EXPECT_THAT(plan({"--device", "gtx-1080", "--dtype", "f16"}), HasSubstr("note      f16 on NVIDIA GeForce"));
}

TEST_F(PlanCommand, PlanAndTrainNameWhatTheyIgnoreOfAModelsFile) {
  std::string config = to_json(find_model("demo"));
  config.insert(config.find('{') + 1, R"("unsloth_fixed": true, )");
  put(folder_ / "config.json", config);
  const std::string folder = folder_.path().string();
  const std::string note = "config.json: ignored, as transformers does: unsloth_fixed";
  const std::vector<std::string> plan = {"plan", "--model", folder, "--context", "64", "--budget", "64MiB"};
  EXPECT_THAT(run_command(plan).out, HasSubstr("note      " + note + "\n"));
  std::vector<std::string> for_machines = plan;
  for_machines.emplace_back("--json");
  EXPECT_EQ(json::parse(run_command(for_machines).out)["notes"], json::array({note}));

  // A model of random weights becomes a folder like any other.
  const CliResult first =
      run_command({"train", "--model", "demo", "--data", "recall", "--context", "64", "--steps", "1",
                   "--budget", "64MiB", "--out", (folder_ / "run").string(), "--json"});
  ASSERT_EQ(first.code, 0) << first.err;
  const auto weights = std::filesystem::path(json::parse(first.out)["checkpoint"].get<std::string>());
  std::filesystem::copy_file(weights / "model.safetensors", folder_ / "model.safetensors");
  const CliResult train =
      run_command({"train", "--model", folder, "--data", "recall", "--context", "64", "--steps", "1",
                   "--budget", "64MiB", "--out", (folder_ / "again").string()});
  EXPECT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.out, HasSubstr("note    " + note + "\n"));
}

TEST_F(PlanCommand, PinsAndComparison) {
  const CliResult result = run_command({"plan", "--model", "qwen3-0.6b", "--context", "8192", "--device",
                                        "h200", "--layers", "keep:8,attention:10,recompute:10",
                                        "--loss-chunk", "512", "--mlp-tile", "256", "--compare"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("8 layers: keep everything, 10 layers: keep attention, recompute the rest, 10 "
                "layers: recompute from the input; loss in chunks of 512 tokens, MLP in tiles of 256"));
  EXPECT_THAT(result.out, HasSubstr("naive: scores and logits held"));
  EXPECT_THAT(result.out, HasSubstr("what if"));
}

TEST_F(PlanCommand, TheOptimizerOnTheHost) {
  const auto plan = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "qwen3-0.6b", "--context", "8192", "--device", "h200",
                               "--compare", "--json"});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  const auto compared = [](const json& planned, std::string_view name) {
    for (const json& row : planned["compare"]) {
      if (row["strategy"] == name) return row;
    }
    return json();
  };
  const json here = plan({});
  EXPECT_EQ(here["optimizer_state"], "device");
  EXPECT_THAT(here["strategy"].get<std::string>(), Not(HasSubstr("optimizer")));
  EXPECT_THAT(here["advice"].dump(), HasSubstr("the optimizer's state moves to the host"));
  const json moved = compared(here, "optimizer on the host");
  const json away = plan({"--optimizer-state", "host"});
  EXPECT_EQ(away["optimizer_state"], "host");
  EXPECT_THAT(away["strategy"].get<std::string>(), HasSubstr("; optimizer on the host"));
  EXPECT_THAT(away["advice"].dump(), Not(HasSubstr("the optimizer's state moves to the host")));
  EXPECT_EQ(away["host_bytes"], moved["host_bytes"]);
  EXPECT_GT(away["host_bytes"], 12 * std::int64_t{596'000'000});
  EXPECT_FALSE(compared(away, "optimizer on the device").is_null());
  EXPECT_EQ(plan({"--optimizer-state", "device", "--host-budget", "64GiB"})["optimizer_state"], "device");
  EXPECT_TRUE(plan({"--optimizer", "none"})["optimizer_state"].is_null());
  // What does not fit the device alone.
  EXPECT_EQ(plan({"--budget", "8GiB", "--host-budget", "64GiB"})["optimizer_state"], "host");
}

TEST_F(PlanCommand, RefusesWhatItCannotRead) {
  const auto refused = [](std::vector<std::string> more, std::string_view said) {
    more.insert(more.begin(), {"plan", "--context", "1024"});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(said));
  };
  refused({}, "--model is required");
  refused({"--model", "demo", "--device", "h300"}, "no device 'h300'; accepted: cpu, a100-40");
  refused({"--model", "demo", "--layers", "keep:2"}, "'keep:2' are 2 layers, the model has 1");
  refused({"--model", "demo", "--layers", "keep:x"}, "keep 'x' has to be a whole number");
  refused({"--model", "demo", "--layers", "hold:1"}, "accepted: parts of keep:N");
  refused({"--model", "demo", "--accumulation", "3"}, "a batch of 1 sequences is not 3 equal micro-steps");
  refused({"--model", "demo", "--attention", "full"}, "add causal");
  refused({"--model", "demo", "--optimizer-state", "host", "--optimizer", "none"},
          "--optimizer none, which has no state");
  put(folder_ / "rates.json", "{");
  refused({"--model", "demo"}, "holds no rates");
}

TEST_F(PlanCommand, NamesEverySecondInputAsPeopleDo) {
  const CliResult result = run_command({"plan", "--model", "qwen3-0.6b", "--context", "1024", "--device",
                                        "h200", "--layers", "recompute:28,every:2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("recompute from every 2nd input"));
}

TEST_F(PlanCommand, EagerPyTorchAndTheRing) {
  const CliResult result = run_command({"plan", "--model", "qwen3-4b", "--context", "131072", "--device",
                                        "h200", "--runtime", "pytorch", "--optimizer", "none", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json planned = json::parse(result.out);
  EXPECT_NEAR(planned["live_peak_bytes"].get<double>(), 57.7 * 1073741824, 0.05 * 57.7 * 1073741824);
  EXPECT_GT(planned["reserved_bytes"], planned["live_peak_bytes"]);
  EXPECT_GT(planned["max_context"], 131072);
  const CliResult ring = run_command(
      {"plan", "--program", "ring-softmax", "--context", "8192", "--budget", "2793MiB", "--json"});
  EXPECT_EQ(ring.code, 3);
  const json rows = json::parse(ring.out)["rows"];
  EXPECT_EQ(rows[0]["failure"]["bytes"], 1073741824);
  EXPECT_TRUE(rows[1]["failure"].is_null());
}

// MLPs that are wider than one pass of a product is deep; built in, and as their config.json says.
TEST_F(PlanCommand, LargeModels) {
  for (const std::string model : {"qwen3-14b", "qwen3-32b", "llama3-70b"}) {
    const auto plan = [](const std::string& name) {
      const CliResult result = run_command(
          {"plan", "--model", name, "--context", "8192", "--device", "b200", "--budget", "2TiB", "--json"});
      EXPECT_EQ(result.code, 0) << result.err;
      return json::parse(result.out);
    };
    const json planned = plan(model);
    EXPECT_TRUE(planned["fits"]);
    // 16-bit weights, f32 gradients, and the optimizer's three.
    EXPECT_GT(planned["live_peak_bytes"], 18 * ParameterTable(built_in_model(model)).parameters());
    std::ofstream(folder_ / "config.json") << to_json(built_in_model(model), DType::bf16);
    const json from_file = plan(folder_.path().string());
    EXPECT_EQ(from_file["arena_bytes"], planned["arena_bytes"]);
    EXPECT_EQ(from_file["strategy"], planned["strategy"]);
    EXPECT_EQ(run_command({"plan", "--model", model, "--context", "8192", "--device", "h200"}).code, 3);
  }
}

TEST_F(PlanCommand, WhatIsTooLargeToPlanIsRefusedInALine) {
  ModelConfig deep = built_in_model("demo");
  deep.layers = 10'000;
  std::ofstream(folder_ / "config.json") << to_json(deep);
  const auto refusal = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--device", "h200"});
    if (std::ranges::find(more, "--context") == more.end()) more.insert(more.end(), {"--context", "256"});
    const CliResult result = run_command(more);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    return result.err;
  };
  const std::string folder = folder_.path().string();
  EXPECT_THAT(refusal({"--model", folder}), HasSubstr("10,000 layers is too deep to plan; at most 1,024"));
  EXPECT_THAT(refusal({"--model", folder, "--runtime", "pytorch"}), HasSubstr("at most 256"));
  for (const std::string runtime : {"headroom", "pytorch"}) {
    EXPECT_THAT(
        refusal({"--model", "demo", "--batch", "2147483647", "--context", "4096", "--runtime", runtime}),
        HasSubstr("at most 1,099,511,627,776 tokens"));
  }
  EXPECT_THAT(refusal({"--model", "demo", "--batch", "64", "--runtime", "pytorch", "--torch-loss", "chunked",
                       "--loss-chunk", "8"}),
              HasSubstr("has 2,048 of 8 tokens; at most 1,024 chunks"));
}

// What is asked for beside the plan does not take it away.
TEST_F(PlanCommand, ScoresPast64BitsAreNotCompared) {
  const CliResult result = run_command({"plan", "--model", "demo", "--context", "2000000000", "--device",
                                        "h200", "--budget", "100TiB", "--compare", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["compare"][0]["strategy"], "every layer recomputed");
}

TEST_F(PlanCommand, TheContextAtHandFits) {
  // Less than the 256 tokens in which the largest is looked for.
  const CliResult result =
      run_command({"plan", "--model", "demo", "--context", "100", "--device", "h200", "--layers", "keep:1",
                   "--loss-chunk", "96", "--mlp-tile", "64", "--budget", "36000KiB", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["max_context"], 100);
}

TEST_F(PlanCommand, WritesAPage) {
  const std::string page = (folder_ / "plan.html").string();
  const CliResult result = run_command(
      {"plan", "--model", "demo", "--context", "1024", "--budget", "64MiB", "--html", page, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json planned = json::parse(result.out);
  EXPECT_THAT(content(page), HasSubstr("Plan for demo at 1,024 tokens"));
  EXPECT_THAT(content(page), HasSubstr(std::to_string(planned["arena_bytes"].get<std::int64_t>())));
}

TEST_F(PlanCommand, ProfileLaysTheRunBesideThePlan) {
  const std::string trace = (folder_ / "trace.json").string();
  const CliResult result = run_command(
      {"profile", "--model", "demo", "--context", "256", "--budget", "64MiB", "--trace", trace, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json profile = json::parse(result.out);
  EXPECT_EQ(profile["live_peak_bytes"], profile["planned_live_peak_bytes"]);
  EXPECT_EQ(profile["reserved_bytes"], profile["planned_arena_bytes"]);
  EXPECT_GT(profile["step_seconds"], 0);
  for (const json& stage : profile["stages"])
    EXPECT_EQ(stage["peak_bytes"], stage["planned_peak_bytes"]) << stage;
  double seconds = 0;
  for (const json& kernel : profile["kernels"]) seconds += kernel["seconds"].get<double>();
  EXPECT_GT(seconds, 0);
  const json events = json::parse(content(trace))["traceEvents"];
  EXPECT_GT(events.size(), 20u);
  EXPECT_EQ(events[0]["ph"], "X");
  // A counter of memory goes with the work, and reaches what the step does.
  std::size_t pieces = 0;
  std::size_t counters = 0;
  std::int64_t most = 0;
  double before = 0;
  for (const json& event : events) {
    pieces += event["ph"] == "X";
    if (event["ph"] != "C") continue;
    ++counters;
    most = std::max(most, event["args"]["bytes"].get<std::int64_t>());
    EXPECT_GE(event["ts"], before);
    before = event["ts"];
  }
  EXPECT_EQ(counters, pieces);
  EXPECT_EQ(most, profile["live_peak_bytes"]);
  EXPECT_EQ(run_command({"profile", "--model", "demo", "--context", "65536", "--budget", "1MiB"}).code, 3);
}

TEST_F(PlanCommand, CalibrationChangesThePrediction) {
  const auto plan = [] {
    return json::parse(
        run_command({"plan", "--model", "demo", "--context", "256", "--budget", "64MiB", "--json"}).out);
  };
  EXPECT_THAT(plan()["rates"].get<std::string>(), HasSubstr("assumed"));
  const CliResult result = run_command({"bench", "step", "--model", "demo", "--context", "128,256",
                                        "--budget", "64MiB", "--steps", "2", "--calibrate"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(plan()["rates"], "measured on this machine");
  EXPECT_GT(plan()["step_seconds"], 0);
}

TEST_F(PlanCommand, TellsWhatRanksHoldAndSend) {
  const std::vector<std::string> question = {"plan",     "--model",   "qwen3-0.6b", "--context", "65536",
                                             "--device", "h200",      "--ranks",    "64",        "--link",
                                             "400Gb/s",  "--latency", "5us"};
  std::vector<std::string> as_json = question;
  as_json.emplace_back("--json");
  const CliResult answer = run_command(as_json);
  ASSERT_EQ(answer.code, 0) << answer.err;
  const json planned = json::parse(answer.out);
  EXPECT_EQ(planned["ranks"], 64);
  EXPECT_EQ(planned["rank_arena_bytes"].size(), 64u);
  std::int64_t ranks = 0;
  std::int64_t most = 0;
  for (const json& like : planned["rank_classes"]) {
    ranks += like["ranks"].get<std::int64_t>();
    EXPECT_EQ(like["tokens"], 1024);
    most = std::max(most, like["arena_bytes"].get<std::int64_t>());
  }
  EXPECT_EQ(ranks, 64);
  EXPECT_EQ(most, planned["arena_bytes"]);
  EXPECT_EQ(planned["link"]["bytes_per_second"], 50e9);
  EXPECT_EQ(planned["link"]["latency_seconds"], 5e-6);
  const json& messages = planned["messages"];
  EXPECT_GT(messages["sent_bytes"], 0);
  EXPECT_GT(messages["sum_seconds"], 0);
  EXPECT_GE(messages["overlap"], 0);
  EXPECT_LE(messages["bubbles"], 1);
  EXPECT_LE(messages["attention_seconds"], planned["step_seconds"]);
  const CliResult text = run_command(question);
  EXPECT_THAT(text.out, HasSubstr("64 divide every sequence"));
  // What was chosen comes first, in words that pin it.
  const json& chosen = planned["choices"][0];
  EXPECT_EQ(planned["choices"].size(), 6u);  // each sharding with both ways of the loss
  EXPECT_EQ(chosen["shard"], planned["shard"]);
  EXPECT_EQ(chosen["loss_ranks"], planned["loss_ranks"]);
  EXPECT_THAT(text.out, HasSubstr("choice    by estimated time: --ring 64 --shard " +
                                  planned["shard"].get<std::string>() + " --loss-ranks " +
                                  planned["loss_ranks"].get<std::string>() + ", "));
  EXPECT_THAT(text.out, HasSubstr("50 GB/s, 5 us"));
  EXPECT_THAT(text.out, HasSubstr("bubbles"));
}

TEST_F(PlanCommand, TellsWhatRanksDivideOfTheState) {
  const auto planned_with = [](const std::vector<std::string>& more) {
    std::vector<std::string> line = {
        "plan", "--model", "qwen3-0.6b", "--context", "65536",        "--batch",        "2", "--device",
        "h200", "--ranks", "64",         "--layers",  "recompute:28", "--accumulation", "1", "--json"};
    line.insert(line.end(), more.begin(), more.end());
    const CliResult answer = run_command(line);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return json::parse(answer.out);
  };
  const json whole = planned_with({"--shard", "none", "--ring", "64", "--loss-ranks", "tokens"});
  EXPECT_FALSE(whole.contains("choices"));
  const json divided = planned_with({"--shard", "full", "--ring", "32"});
  EXPECT_EQ(whole["shard"], "none");
  EXPECT_EQ(divided["shard"], "full");
  EXPECT_EQ(divided["ranks"], 64);
  EXPECT_EQ(divided["ring"], 32);
  EXPECT_EQ(divided["rank_arena_bytes"].size(), 64u);
  EXPECT_EQ(divided["rank_classes"][0]["tokens"], 2048);
  // Of weights and moments little more than a 64th is left of each tensor.
  for (std::size_t i = 0; i < whole["state_bytes"].size(); ++i) {
    const auto all = whole["state_bytes"][i]["bytes"].get<double>();
    EXPECT_NEAR(divided["state_bytes"][i]["bytes"].get<double>() / all, 1.0 / 64, 1e-3);
  }
  EXPECT_LT(divided["arena_bytes"], whole["arena_bytes"]);
}

TEST_F(PlanCommand, NamesTheFewestRanksThatFit) {
  const std::vector<std::string> question = {"plan",     "--model",  "qwen3-0.6b", "--context", "1048576",
                                             "--device", "rtx-4090", "--budget",   "16GiB"};
  const CliResult alone = run_command(question);
  EXPECT_EQ(alone.code, 3);
  EXPECT_THAT(alone.err,
              HasSubstr("does not fit on one rank, and the smallest number of ranks that fits is "));
  const auto planned_on = [&](const std::string& ranks) {
    std::vector<std::string> line = question;
    line.insert(line.end(), {"--ranks", ranks, "--json"});
    const CliResult answer = run_command(line);
    return json::parse(answer.out);
  };
  const json fewest = planned_on("auto");
  EXPECT_TRUE(fewest["fits"]);
  const std::int64_t ranks = fewest["ranks"];
  EXPECT_GT(ranks, 1);
  const json fewer = planned_on(std::to_string(ranks - 1));
  EXPECT_FALSE(fewer["fits"]);
  EXPECT_EQ(fewer["smallest_ranks"], ranks);
  // The weights alone do not fit on any number of ranks.
  std::vector<std::string> small = question;
  small.back() = "2GiB";
  std::vector<std::string> undivided = small;
  undivided.insert(undivided.end(), {"--ranks", "2", "--shard", "none"});
  EXPECT_THAT(run_command(undivided).err, HasSubstr("no number of ranks up to 1,024 fits"));
  // Divided, they do.
  small.insert(small.end(), {"--ranks", "auto", "--json"});
  const CliResult divided = run_command(small);
  EXPECT_EQ(divided.code, 0) << divided.err;
  EXPECT_EQ(json::parse(divided.out)["shard"], "full");
}

TEST_F(PlanCommand, SaysFromWhichContextOnRanksAreFaster) {
  const auto crossover = [](const std::string& link) {
    const CliResult answer = run_command({"plan", "--model", "qwen3-0.6b", "--context", "262144", "--device",
                                          "h200", "--ranks", "2", "--link", link, "--crossover", "--json"});
    EXPECT_EQ(answer.code, 0) << answer.err;
    return json::parse(answer.out)["crossover_context"];
  };
  const json fast = crossover("450GB/s");
  const json slow = crossover("25Gb/s");
  ASSERT_FALSE(fast.is_null());
  ASSERT_FALSE(slow.is_null());
  EXPECT_LT(fast.get<std::int64_t>(), slow.get<std::int64_t>());
}

}  // namespace
}  // namespace headroom
