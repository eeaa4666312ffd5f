#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/run.h"
#include "output_buffer.h"

namespace headroom {
namespace {

TEST(Commands, HelpHasExamplesEverywhere) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"devices", "--help"},
                                             {"bench", "memory", "--help"},
                                             {"bench", "attention", "--help"},
                                             {"bench", "loss", "--help"},
                                             {"bench", "ring", "--help"},
                                             {"verify", "attention", "--help"},
                                             {"verify", "loss", "--help"},
                                             {"verify", "ring", "--help"},
                                             {"verify", "memory", "--help"}}) {
    const CliResult result = run_command(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("Example"), std::string::npos) << result.out;
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(run_command({"--version"}).out.find("headroom "), 0U);
}

// As a terminal is that another program has left so.
TEST(Commands, WaitForAnOutputThatDoesNotBlock) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string text(1 << 20, 'x');
  std::size_t got = 0;
  std::jthread reader([&] {
    std::string block(1 << 12, 0);
    for (ssize_t size = 0; (size = read(ends[0], block.data(), block.size())) > 0;)
      got += static_cast<std::size_t>(size);
  });
  {
    OutputBuffer buffer(ends[1]);
    std::ostream out(&buffer);
    out.exceptions(std::ios::badbit);
    EXPECT_NO_THROW(out << text << std::flush);
  }
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_EQ(got, text.size());
}

TEST(Commands, DevicesAsTextAndJson) {
  const CliResult text = run_command({"devices"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("default dtype f32: "), std::string::npos) << text.out;
  const CliResult result = run_command({"devices", "cpu", "--json"});
  EXPECT_EQ(result.code, 0);
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json.at("devices").size(), 1U);
  const auto& cpu = json.at("devices")[0];
  EXPECT_EQ(cpu.at("device"), "cpu");
  EXPECT_GE(cpu.at("cores"), 1);
  EXPECT_GT(cpu.at("memory_bytes"), cpu.at("free_bytes"));
  for (const char* key : {"simd", "amx", "l1_bytes", "l2_bytes", "l3_bytes", "held_by_others_bytes",
                          "holders", "default_dtype", "default_dtype_reason"}) {
    EXPECT_TRUE(cpu.contains(key)) << key;
  }
}

TEST(Commands, VerifyMemoryPasses) {
  const CliResult text = run_command({"verify", "memory", "--steps", "30"});
  EXPECT_EQ(text.code, 0) << text.out << text.err;
  EXPECT_NE(text.out.find("verify memory: passed"), std::string::npos) << text.out;
  const CliResult result = run_command({"verify", "memory", "--steps", "30", "--budget", "64MiB", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("ok"), true);
  EXPECT_EQ(json.at("planned_bytes"), json.at("reserved_bytes"));
  EXPECT_EQ(json.at("planned_live_peak_bytes"), json.at("live_peak_bytes"));
  EXPECT_EQ(json.at("differing_events"), 0);
  EXPECT_EQ(json.at("budget_bytes"), 64 << 20);
}

TEST(Commands, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  const CliResult result = run_command({"verify", "memory", "--budget", "100kB"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("does not fit"), std::string::npos);
  EXPECT_NE(result.err.find("100,000"), std::string::npos) << result.err;
  const auto json = nlohmann::json::parse(run_command({"verify", "memory", "--budget", "1", "--json"}).out);
  EXPECT_EQ(json.at("fits"), false);
  // One byte decides.
  const std::int64_t needed =
      json.at("planned_bytes").get<std::int64_t>() + json.at("planned_host_bytes").get<std::int64_t>();
  EXPECT_EQ(run_command({"verify", "memory", "--steps", "30", "--budget", std::to_string(needed)}).code, 0);
  EXPECT_EQ(run_command({"verify", "memory", "--steps", "30", "--budget", std::to_string(needed - 1)}).code,
            3);
}

TEST(Commands, BenchMemorySmall) {
  const CliResult result = run_command(
      {"bench", "memory", "--traces", "2", "--blocks", "500", "--large-events", "2000", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json.at("rows").size(), 4U);
  for (const auto& row : json.at("rows")) {
    EXPECT_GE(row.at("packer").at("mean"), 1.0);
    EXPECT_LE(row.at("packer").at("worst"), row.at("first_fit").at("worst"));
  }
  EXPECT_NE(run_command({"bench", "memory", "--traces", "1", "--blocks", "50", "--large-events", "200"})
                .out.find("caching allocator"),
            std::string::npos);
}

nlohmann::json bench_attention(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "attention", "--json"});
  const CliResult result = run_command(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(Commands, BenchAttentionMeasures) {
  const auto json = bench_attention({"--seq", "40,80", "--head-dim", "16", "--heads", "4", "--kv-heads", "2",
                                     "--mask", "causal+window:9,dilated:20/2", "--dtype", "f32", "--impl",
                                     "tiled,naive,naive-recompute,reference", "--steps", "2"});
  for (const char* key : {"machine", "commit", "rows", "growth", "budget_bytes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_GT(json["machine"]["peak_gflops"]["f32"], 0);
  ASSERT_EQ(json["rows"].size(), 2U * 2 * 4);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row.at("status"), "ok");
    EXPECT_GT(row.at("forward_ms"), 0);
    EXPECT_GT(row.at("backward_ms"), 0);
    EXPECT_GT(row.at("peak_bytes"), row.at("added_bytes"));
    EXPECT_LT(row.at("error"), 1e-5);
    EXPECT_GT(row.at("gflops"), 0);
  }
  EXPECT_EQ(json["growth"].size(), 2U * 4);
}

TEST(Commands, BenchAttentionRefusesWhatDoesNotFitBeforeItRuns) {
  // Nothing runs: a byte is the whole budget. What naive keeps is the seed's add_mem column, within 1 %.
  const auto json =
      bench_attention({"--preset", "seed-grid", "--impl", "naive,naive-recompute,tiled", "--budget", "1"});
  const std::map<std::int64_t, double> add_mem_mib = {
      {256, 4.02344}, {1024, 64.0938}, {4096, 1024.38}, {8192, 4096.75}, {16384, 16385.5}};
  ASSERT_EQ(json["rows"].size(), 5U * 4 * 3);
  std::map<std::string, std::int64_t> added;
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row.at("status"), "oom");
    const std::int64_t seq = row.at("seq");
    const double saved = row.at("saved_bytes").get<double>() / (1 << 20);
    if (row.at("impl") == "naive") {
      EXPECT_NEAR(saved / add_mem_mib.at(seq), 1, 0.01) << seq;
    } else {
      EXPECT_LT(saved, 1);
    }
    if (seq == 16384 && row.at("head_dim") == 64) added[row.at("impl")] = row.at("added_bytes");
  }
  EXPECT_LT(added.at("tiled") * 100, added.at("naive"));
  EXPECT_EQ(added.at("naive"), added.at("naive-recompute"));
  for (const auto& fit : json["growth"]) EXPECT_EQ(fit.at("largest_seq"), 0);
}

TEST(Commands, BenchAttentionAsTextCsvAndMarkdown) {
  const std::vector<std::string> sizes = {"bench",   "attention", "--seq",  "32,64", "--head-dim", "8",
                                          "--heads", "1",         "--impl", "tiled", "--steps",    "1"};
  const auto with = [&](const std::string& option) {
    std::vector<std::string> arguments = sizes;
    arguments.push_back(option);
    const CliResult result = run_command(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_NE(with("--explain").find("largest seq in"), std::string::npos);
  EXPECT_NE(with("--explain").find("reference: serves it"), std::string::npos);
  EXPECT_EQ(with("--csv").find("impl,dtype,batch,"), 0U);
  EXPECT_EQ(with("--markdown").find("| impl |"), 0U);
}

TEST(Commands, BenchAttentionFitsNothingToWhatCannotRun) {
  const CliResult result = run_command({"bench", "attention", "--json", "--seq", "32,64", "--head-dim", "8",
                                        "--heads", "1", "--impl", "tiled,portable", "--steps", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("rows").size(), 4U);
  ASSERT_EQ(json.at("growth").size(), 1U);
  EXPECT_GT(json.at("growth")[0].at("largest_seq"), 64);
}

TEST(Commands, DocumentsComeFromAFile) {
  const std::string path = testing::TempDir() + "/documents.txt";
  std::ofstream(path) << "10\n0\n1\n30\n";
  const auto json =
      bench_attention({"--seq", "64", "--head-dim", "8", "--heads", "1", "--impl", "tiled,reference",
                       "--steps", "1", "--mask", "documents:" + path + ",causal+documents:" + path});
  for (const auto& row : json["rows"]) EXPECT_LT(row.at("error"), 1e-5);
}

TEST(Commands, VerifyAttentionAndLossPass) {
  // Every 97th case leaves out the large ones.
  const CliResult attention = run_command({"verify", "attention", "--every", "97", "--json"});
  EXPECT_EQ(attention.code, 0) << attention.out;
  EXPECT_GT(nlohmann::json::parse(attention.out).at("cases"), 5);

  const CliResult text = run_command({"verify", "loss", "--every", "17", "--impl", "standard"});
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_NE(text.out.find("standard it keeps logits of the whole vocabulary"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(", 0 failed\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("131,072  37.09 GiB     by size   chunked           4,096"), std::string::npos)
      << text.out;
}

TEST(Commands, VerifyLossSaysHowTheSeedsThreeSizesAreTaken) {
  const CliResult result = run_command({"verify", "loss", "--every", "40", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("failed"), 0);
  EXPECT_GE(json.at("cases"), 8);
  EXPECT_LE(json.at("worst"), 1);
  const std::map<std::int64_t, std::string> by_size = {
      {4096, "standard"}, {40'000, "chunked"}, {131'072, "chunked"}};
  const std::map<std::int64_t, double> gib = {{4096, 1.16}, {40'000, 11.32}, {131'072, 37.09}};
  std::size_t decided = 0;
  for (const auto& method : json.at("methods")) {
    const std::int64_t tokens = method.at("tokens");
    EXPECT_NEAR(method.at("logits_bytes").get<double>() / (1 << 30), gib.at(tokens), 0.005);
    if (method.at("rule") == "size") {
      ++decided;
      EXPECT_EQ(method.at("implementation"), by_size.at(tokens));
      EXPECT_EQ(method.at("chunk_tokens"), tokens == 4096 ? 0 : 4096);
      // What chunks save forward, eager autograd keeps for backward.
      EXPECT_GT(method.at("added_bytes"), method.at("logits_bytes"));
    } else {
      EXPECT_EQ(method.at("implementation"), "fused");
      EXPECT_LE(method.at("added_bytes"), method.at("budget_bytes"));
    }
  }
  EXPECT_EQ(decided, 3U);
  EXPECT_EQ(json.at("methods").size(), 3U * 5);
}

nlohmann::json bench_loss(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "loss", "--json"});
  const CliResult result = run_command(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// A step over ranks: what the link adds, and the plan's times beside those measured.
TEST(Commands, BenchStepOverRanksMeasures) {
  const CliResult result =
      run_command({"bench", "step", "--model", "demo", "--context", "96", "--ranks", "2,4", "--shard",
                   "optimizer", "--latency", "2ms", "--steps", "1", "--warmup", "0", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json["rows"].size(), 2U);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row.at("status"), "ok");
    const auto& times = row.at("over_ranks");
    EXPECT_EQ(times.at("ring"), row.at("ranks"));
    EXPECT_EQ(times.at("shard"), "optimizer");
    EXPECT_TRUE(times.at("link").at("bytes_per_second").is_null());
    EXPECT_EQ(times.at("link").at("latency_seconds"), 2e-3);
    EXPECT_GT(times.at("predicted_alone_milliseconds"), 0);
    // Some ten messages come one after the other: attention, the loss, the sums of the update.
    EXPECT_GT(times.at("linked_milliseconds"), 10.0);
    EXPECT_GT(times.at("predicted_milliseconds").get<double>(),
              times.at("predicted_alone_milliseconds").get<double>() + 10);
  }
}

TEST(Commands, BenchLossMeasures) {
  const auto json = bench_loss({"--tokens", "70", "--hidden", "24", "--vocab", "1100", "--dtype", "f32",
                                "--impl", "fused,chunked-recompute,chunked,standard,reference",
                                "--chunk-tokens", "0,50", "--chunk-vocab", "0,512", "--steps", "2"});
  for (const char* key : {"machine", "commit", "rows", "budget_bytes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_GT(json["machine"]["peak_gflops"]["f32"], 0);
  ASSERT_EQ(json["rows"].size(), 5U * 2 * 2);
  for (const auto& row : json["rows"]) {
    const bool chunks_words = row.at("impl") == "fused" || row.at("impl") == "chunked-recompute";
    const bool chunks_tokens = chunks_words || row.at("impl") == "chunked";
    if ((!chunks_words && row.at("chunk_vocab") != 0) || (!chunks_tokens && row.at("chunk_tokens") != 0)) {
      EXPECT_EQ(row.at("status"), "unsupported");
      continue;
    }
    EXPECT_EQ(row.at("status"), "ok");
    EXPECT_GT(row.at("milliseconds"), 0);
    EXPECT_GT(row.at("peak_bytes"), row.at("added_bytes"));
    EXPECT_GT(row.at("added_bytes"), 0);
    EXPECT_GT(row.at("gflops"), 0);
    EXPECT_LT(row.at("error"), 1e-5);
  }
}

TEST(Commands, BenchLossRefusesTheLogitsThatStartedItAll) {
  // Nothing runs. All the logits of 131,072 tokens are 79.7 GB in f32; fused takes 1,024 tokens of them or
  // fewer.
  const auto json = bench_loss({"--tokens", "131072", "--vocab", "151936", "--hidden", "64", "--impl",
                                "standard,fused", "--budget", "100MiB"});
  const auto& standard = json["rows"][0];
  EXPECT_EQ(standard.at("status"), "oom");
  EXPECT_NE(standard.at("reason").get<std::string>().find("79.7 GB"), std::string::npos) << standard;
  EXPECT_GE(standard.at("added_bytes"), 79'656'124'416);
  const auto& fused = json["rows"][1];
  EXPECT_EQ(fused.at("status"), "oom");
  EXPECT_LT(fused.at("added_bytes"), 256 << 20);
}

TEST(Commands, BenchLossAsTextCsvAndMarkdown) {
  const auto with = [&](const std::string& option) {
    const CliResult result = run_command(
        {"bench", "loss", "--tokens", "32", "--hidden", "8", "--vocab", "100", "--steps", "1", option});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_NE(with("--warmup=0").find("one step: fused and fused-cuda run backward alone"), std::string::npos);
  EXPECT_EQ(with("--csv").find("impl,dtype,tokens,"), 0U);
  EXPECT_EQ(with("--markdown").find("| impl |"), 0U);
}

}  // namespace
}  // namespace headroom
