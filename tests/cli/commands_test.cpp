#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run.h"

namespace headroom {
namespace {

TEST(Commands, HelpHasExamplesEverywhere) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"devices", "--help"},
                                             {"bench", "memory", "--help"},
                                             {"verify", "memory", "--help"}}) {
    const CliResult result = run_command(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("Example"), std::string::npos) << result.out;
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(run_command({"--version"}).out.find("headroom "), 0U);
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

}  // namespace
}  // namespace headroom
