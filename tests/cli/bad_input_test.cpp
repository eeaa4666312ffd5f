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

}  // namespace
}  // namespace headroom
