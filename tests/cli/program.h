// The program itself, in a process of its own: what signals, pipes and closed descriptors do to it.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/temporary_folder.h"

namespace headroom {

struct ProgramResult {
  int code = -1;  // 128 and the signal's number where one ended it
  std::string err;
};

class Program {
 public:
  // A line for sh, in which $headroom is the program and the folder is the current one. Standard error goes
  // to err.txt in it, unless the line says otherwise.
  Program(const TemporaryFolder& folder, const std::string& line) : folder_(folder.path()) {
    child_ = fork();
    if (child_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string script =
        "headroom='" HEADROOM_PROGRAM "'; cd '" + folder_.string() + "' && { exec 2>err.txt; " + line + "; }";
    execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (child_ > 0) static_cast<void>(wait(std::chrono::seconds(0)));
  }

  // To the process of the line, which has to be an exec of the program.
  void signal(int number) const { kill(child_, number); }

  // True once the condition holds; false where the process has ended before.
  [[nodiscard]] bool runs_until(const std::function<bool()>& condition) const {
    while (!condition()) {
      if (ended()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  // A process that does not end by then is killed.
  ProgramResult wait(std::chrono::seconds longest = std::chrono::seconds(60)) {
    const auto deadline = std::chrono::steady_clock::now() + longest;
    const auto too_late = [&] { return std::chrono::steady_clock::now() >= deadline; };
    if (runs_until(too_late)) signal(SIGKILL);
    int status = 0;
    EXPECT_GT(waitpid(std::exchange(child_, 0), &status, 0), 0);
    return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), content(folder_ / "err.txt")};
  }

 private:
  [[nodiscard]] bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
  }

  std::filesystem::path folder_;
  pid_t child_ = 0;
};

inline ProgramResult run_program(const TemporaryFolder& folder, const std::string& line) {
  return Program(folder, line).wait();
}

}  // namespace headroom
