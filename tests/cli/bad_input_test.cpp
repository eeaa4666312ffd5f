// Bad input: one line on standard error that names what was wrong, the documented exit code, nothing on
// standard output. The table is in bad_inputs.cpp and bad_files.cpp.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/bad_inputs.h"
#include "cli/run.h"
#include "core/temporary_folder.h"

namespace headroom {
namespace {

class Environment {
 public:
  explicit Environment(const std::vector<std::pair<std::string, std::string>>& values) : values_(values) {
    for (const auto& [name, value] : values_) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : values_) unsetenv(name.c_str());
  }

 private:
  const std::vector<std::pair<std::string, std::string>>& values_;
};

void run(const std::vector<BadInput>& table) {
  for (const BadInput& input : table) {
    const Environment environment(input.environment);
    const CliResult result = run_command(input.arguments);
    const std::string wrong = fault(input, result.code, result.out, result.err);
    EXPECT_TRUE(wrong.empty()) << wrong;
  }
}

TEST(BadInput, OfValues) {
  const TemporaryFolder folder;
  const std::vector<BadInput> table = bad_values(folder.path());
  run(table);
  EXPECT_GE(table.size(), 300U);
  EXPECT_TRUE(names(folder.path()).empty());  // nothing was begun
}

TEST(BadInput, OfFiles) {
  const TemporaryFolder folder;
  run(bad_files(folder.path()));
  EXPECT_EQ(content(folder / "precious"), "kept");
}

// What stands close to the edge of what is refused.
TEST(GoodInput, IsTaken) {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> lines = {
      {"plan", "--model=demo", "--context=64", "--budget", "1.5 GiB", "--layers", "keep:1,recompute:0"},
      {"plan", "--model", "demo", "--context", "64", "--runtime", "pytorch", "--loss-chunk", "8"},
      {"plan", "--model", "demo", "--context", "64", "--html=" + (folder / "--page").string()},
      {"plan", "--program", "ring-softmax", "--context", "64", "--batch", "2", "--device", "h200", "--json"},
      {"train",
       "--model",
       "demo",
       "--data",
       "recall:keys=2,values=2",
       "--context",
       "64",
       "--steps",
       "1",
       "--out",
       (folder / "run").string(),
       "--clip",
       "inf",
       "--seed",
       "18446744073709551615",
       "--learning-rate",
       "0",
       "--warmup",
       "0",
       "--final-fraction",
       "1E-3",
       "--attention",
       "causal+dilated:8/1"},
      {"devices", "cpu"}};
  for (const std::vector<std::string>& line : lines) {
    const CliResult result = run_command(line);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "--page"));
}

TEST(GoodInput, NoFlagIsIgnored) {
  const CliResult explained =
      run_command({"bench", "attention", "--seq", "16", "--impl", "sm90", "--explain", "--steps", "1"});
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_NE(explained.out.find("chosen for the first case: tiled"), std::string::npos) << explained.out;
  const CliResult chunked =
      run_command({"bench", "loss", "--tokens", "16", "--vocab", "32", "--hidden", "16", "--steps", "1",
                   "--impl", "standard,reference", "--chunk-tokens", "8", "--csv"});
  EXPECT_EQ(chunked.code, 0) << chunked.err;
  EXPECT_NE(chunked.out.find("unsupported: it takes all tokens"), std::string::npos) << chunked.out;
  EXPECT_EQ(chunked.out.find(",ok"), std::string::npos) << chunked.out;
}

TEST(GoodInput, NamesThatAreNoTextStayReadableInJson) {
  const TemporaryFolder folder;
  const std::string model = (folder / "m\xff").string();
  const CliResult trained = run_command({"train", "--model", "demo", "--data", "recall", "--context", "64",
                                         "--steps", "1", "--out", (folder / "run").string()});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(folder / "run/step-00000001/config.json", model + "/config.json");
  const CliResult result = run_command({"plan", "--model", model, "--context", "64", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("m\uFFFD\""), std::string::npos) << result.out;
}

}  // namespace
}  // namespace headroom
