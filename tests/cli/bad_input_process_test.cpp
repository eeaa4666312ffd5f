// The table of bad input, given to the program itself. In the optimised build each row also has to end within
// its seconds and within 1 GiB of resident memory; a row that is too slow gets a second try, since the
// machine may have been busy.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "cli/bad_inputs.h"
#include "core/temporary_folder.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kHangs = 60;                      // seconds after which a process is ended
[[maybe_unused]] constexpr long kMostKiB = 1 << 20;  // where the build has limits

struct Ended {
  int code = 0;  // negative: the signal that ended it
  std::string out;
  std::string err;
  double seconds = 0;
  long resident_kib = 0;
};

[[noreturn]] void become(const BadInput& input, const fs::path& folder) {
  for (const auto& [name, value] : input.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv = {const_cast<char*>("headroom")};
  for (const std::string& argument : input.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto redirect = [](const fs::path& file, int to) {
    dup2(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
  };
  redirect(folder / "out", STDOUT_FILENO);
  redirect(folder / "err", STDERR_FILENO);
  alarm(kHangs);
  execv(HEADROOM_PROGRAM, argv.data());
  _exit(127);
}

Ended run(const BadInput& input, const fs::path& folder) {
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) become(input, folder);
  int status = 0;
  struct rusage usage {};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = content(folder / "out"),
          .err = content(folder / "err"),
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          .resident_kib = usage.ru_maxrss};
}

void run_all(const std::vector<BadInput>& table) {
  const TemporaryFolder folder;
  double slowest = 0;
  long largest = 0;
  for (const BadInput& input : table) {
    Ended ended = run(input, folder.path());
    const std::string wrong = fault(input, ended.code, ended.out, ended.err);
    EXPECT_TRUE(wrong.empty()) << wrong;
#if defined(HEADROOM_LIMITS)
    if (ended.seconds > input.seconds) ended = run(input, folder.path());
    EXPECT_LE(ended.seconds, input.seconds) << describe(input);
    EXPECT_LE(ended.resident_kib, kMostKiB) << describe(input);
#endif
    slowest = std::max(slowest, ended.seconds);
    largest = std::max(largest, ended.resident_kib);
  }
  fmt::print("{} rows; the slowest took {:.2f} s, the largest {} KiB\n", table.size(), slowest, largest);
}

TEST(BadInputProcess, OfValues) {
  const TemporaryFolder folder;
  run_all(bad_values(folder.path()));
  EXPECT_TRUE(names(folder.path()).empty());
}

TEST(BadInputProcess, OfFiles) {
  const TemporaryFolder folder;
  run_all(bad_files(folder.path()));
  EXPECT_EQ(content(folder / "precious"), "kept");
}

}  // namespace
}  // namespace headroom
