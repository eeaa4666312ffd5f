// A progress line on a terminal for work of more than two seconds; nothing into files and pipes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace headroom {

class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

  void at(std::int64_t done, std::int64_t of) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - start_ < std::chrono::seconds(2) || now - last_ < std::chrono::milliseconds(100))
      return;
    last_ = now;
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s %lld of %lld", what_.c_str(), static_cast<long long>(done),
                 static_cast<long long>(of));
  }

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace headroom
