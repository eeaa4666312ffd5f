#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run.h"

namespace headroom {
namespace {

// The last loss over the floor, on samples that were not trained on.
double of_floor(const std::string& attention) {
  const auto out = std::filesystem::temp_directory_path() / fmt::format("headroom-recall-{}", getpid());
  std::filesystem::remove_all(out);
  const CliResult result =
      run_command({"train", "--model", "demo", "--data", "recall", "--context", "1024", "--steps", "150",
                   "--learning-rate", "3e-3", "--attention", attention, "--out", out.string(), "--json"});
  std::filesystem::remove_all(out);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  return json["held_out_loss"].get<double>() / json["floor"].get<double>();
}

TEST(TrainRecall, AttentionThatReachesLearnsAndAWindowDoesNot) {
  EXPECT_LE(of_floor("causal"), 0.5);
  EXPECT_GE(of_floor("window:64"), 0.95);
}

}  // namespace
}  // namespace headroom
