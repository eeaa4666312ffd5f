// Figures that commands report, held against where they come from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run.h"
#include "core/temporary_folder.h"
#include "headroom/cpu.h"
#include "headroom/jobs/rates.h"
#include "verify.h"

namespace headroom {
namespace {

using nlohmann::json;

// Rates of the machine that runs the tests are none of their business.
class ReportedFigures : public testing::Test {
 protected:
  void SetUp() override { setenv("HEADROOM_RATES", (folder_ / "rates.json").c_str(), 1); }
  void TearDown() override { unsetenv("HEADROOM_RATES"); }

  [[nodiscard]] static json json_of(const std::vector<std::string>& arguments) {
    const CliResult result = run_command(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  }

  TemporaryFolder folder_;
};

// Both are means over the steps of what the same kernels took, so it does not matter how fast they were. A
// few kernels lie outside every stage (they fill the batch), and copies are in the stages alone.
TEST_F(ReportedFigures, StageSecondsOfAProfileAreThoseOfOneStep) {
  const json profile = json_of(
      {"profile", "--model", "demo", "--context", "512", "--steps", "8", "--budget", "64MiB", "--json"});
  double stages = 0;
  for (const json& stage : profile["stages"]) stages += stage["seconds"].get<double>();
  double kernels = 0;
  for (const json& kernel : profile["kernels"]) kernels += kernel["seconds"].get<double>();
  EXPECT_GT(stages, 0.5 * kernels);
  EXPECT_LT(stages, 2 * kernels);
}

TEST_F(ReportedFigures, AStepIsAllItsMicroStepsAndSaysWhatItRuns) {
  const auto profile = [](const std::string& accumulation) {
    return json_of({"profile", "--model", "demo", "--context", "64", "--steps", "1", "--budget", "64MiB",
                    "--accumulation", accumulation, "--json"});
  };
  const auto calls = [](const json& report, const std::string& name) {
    const auto found =
        std::ranges::find_if(report["kernels"], [&](const json& kernel) { return kernel["kernel"] == name; });
    return found->at("calls").get<int>();
  };
  const json once = profile("1");
  const json thrice = profile("3");
  EXPECT_EQ(calls(thrice, "product"), 3 * calls(once, "product"));
  EXPECT_EQ(calls(thrice, "adamw"), calls(once, "adamw"));
  EXPECT_TRUE(once["free"].is_null());  // of a GPU
  EXPECT_EQ(once["implementations"][0]["family"], "attention");
  EXPECT_EQ(once["implementations"][0]["rows"], json({"tiled"}));

  const json bench =
      json_of({"bench", "step", "--context", "64", "--steps", "1", "--budget", "64MiB", "--batch", "2",
               "--accumulation", "3", "--layers", "recompute:1", "--json"})["rows"][0];
  const double milliseconds =
      bench["milliseconds"].get<double>() + bench["update_milliseconds"].get<double>();
  EXPECT_NEAR(bench["tokens_per_second"], 1e3 * 2 * 3 * 64 / milliseconds, 1);
  EXPECT_THAT(bench["strategy"].get<std::string>(), testing::HasSubstr("recompute from the input"));
  EXPECT_GE(bench["arena_over_live_peak"], 1);
  EXPECT_EQ(bench["reserved_bytes"], bench["arena_bytes"]);
  EXPECT_EQ(bench["free_change_bytes"], 0);
  EXPECT_EQ(bench["implementations"], once["implementations"]);
}

TEST_F(ReportedFigures, RatesOfAnotherMachineCoreCountOrDTypeAreIgnored) {
  const DeviceDescription here = describe_cpu();
  const std::vector<CalibrationRuns> runs = {
      {.dtype = DType::f32,
       .records = {{.work = {.kernel = "product", .flops = 1e9, .bytes = 1}, .runs = 1, .seconds = 0.5}}}};
  const auto measured = [&](const DeviceDescription& written, const DeviceDescription& asked, DType dtype) {
    write_rates(rates_file(), written, runs);
    const MachineCosts machine = this_machine(asked, dtype);
    EXPECT_EQ(machine.measured, machine.costs.kernels().contains("product"));
    return machine.measured;
  };
  EXPECT_TRUE(measured(here, here, DType::f32));
  DeviceDescription other = here;
  other.cores = here.cores + 1;
  EXPECT_FALSE(measured(other, here, DType::f32));
  EXPECT_FALSE(measured(here, other, DType::f32));  // --threads
  EXPECT_TRUE(measured(other, other, DType::f32));
  other = here;
  other.name += "x";
  EXPECT_FALSE(measured(other, here, DType::f32));
  EXPECT_FALSE(measured(here, here, DType::bf16));
}

TEST_F(ReportedFigures, TheMeasuredLinkIsWhatCopiesCost) {
  DeviceDescription gpu = find_in_catalogue("h200").device;
  const Work copy{.kind = WorkKind::copy, .kernel = "copy", .bytes = 2 * 55e9};  // read and written
  EXPECT_NEAR(this_machine(gpu, DType::bf16).costs.seconds(copy), 1, 1e-9);      // the catalogue's
  const std::vector<CalibrationRuns> runs = {
      {.dtype = DType::bf16,
       .records = {{.work = {.kernel = "product", .flops = 1e9, .bytes = 1}, .runs = 1, .seconds = 0.5}}}};
  write_rates(rates_file(), gpu, runs, HostLink{.to_device = 44e9, .to_host = 50e9});
  EXPECT_NEAR(this_machine(gpu, DType::bf16).costs.seconds(copy), 55.0 / 44, 1e-9);  // the slower way
  write_rates(rates_file(), gpu, runs);
  EXPECT_NEAR(this_machine(gpu, DType::bf16).costs.seconds(copy), 1, 1e-9);
  gpu.name += " NVL";  // as drivers do
  EXPECT_NEAR(this_machine(gpu, DType::bf16).costs.seconds(copy), 1, 1e-9);
  gpu.name = "unheard of";
  gpu.cores = 7;
  gpu.host_link_bytes_per_second = 0;
  EXPECT_NEAR(this_machine(gpu, DType::bf16).costs.seconds(copy), 55.0 / 25, 1e-9);
  CpuBackend backend(1);
  const HostLink link = measure_host_link(backend, 1 << 20);
  EXPECT_GT(link.to_device, 0);
  EXPECT_GT(link.to_host, 0);
  EXPECT_EQ(backend.reserved_bytes(Space::device), 0);
}

TEST_F(ReportedFigures, BytesOfAComparisonAreThoseOfDeviceAndHost) {
  const json plan = json_of({"plan", "--model", "demo", "--context", "4096", "--device", "h200",
                             "--optimizer-state", "host", "--compare", "--json"});
  const std::int64_t host_bytes = plan["host_bytes"];
  EXPECT_GT(host_bytes, 1 << 20);
  const json& chosen = plan["compare"].back();
  EXPECT_EQ(chosen["strategy"], "chosen");
  EXPECT_EQ(chosen["host_bytes"], host_bytes);
  EXPECT_EQ(chosen["bytes"], plan["arena_bytes"].get<std::int64_t>() + host_bytes);
}

TEST(Verification, NotANumberIsAFailure) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto report = [](const std::vector<double>& errors) {
    Verification verification("attention", errors.size());
    for (std::size_t i = 0; i < errors.size(); ++i)
      verification.ran("tiled", "causal", "case " + std::to_string(i), errors[i]);
    VerifyOptions options;
    options.json = true;
    std::ostringstream out;
    const int code = verification.report(options, nlohmann::ordered_json::object(), out);
    return std::pair{code, json::parse(out.str())};
  };
  EXPECT_EQ(report({0.5, 1}).first, 0);
  EXPECT_EQ(report({0.5, 1}).second["worst"], 1);
  for (const std::vector<double>& errors :
       {std::vector{kNaN, 0.25, 0.5}, std::vector{0.25, kNaN, 0.5}, std::vector{0.25, 0.5, kNaN}}) {
    const auto [code, reported] = report(errors);
    EXPECT_EQ(code, 1);
    EXPECT_EQ(reported["failed"], 1);
    // No number is worse: null in JSON.
    EXPECT_TRUE(reported["worst"].is_null()) << reported;
    EXPECT_TRUE(reported["groups"][0]["worst"].is_null()) << reported;
    const auto nan = std::ranges::find_if(errors, [](double error) { return std::isnan(error); });
    EXPECT_EQ(reported["groups"][0]["worst_case"], "case " + std::to_string(nan - errors.begin()));
  }
}

}  // namespace
}  // namespace headroom
