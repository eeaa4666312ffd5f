// Which ranks of this host have died. Messages of a rank that was killed just never come, and mpirun kills
// the others a second later: this is how they can say before that whom they lost.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace headroom {

// A process as those of the same host can find it.
struct HostProcess {
  std::uint64_t host = 0;  // the system and its namespace of process numbers
  pid_t process = 0;

  [[nodiscard]] static HostProcess self();
};

class HostProcesses {
 public:
  // The processes by rank. Those of other hosts, and those that the system does not let this one watch, are
  // taken to live.
  HostProcesses(const std::vector<HostProcess>& ranks, int own);
  HostProcesses(const HostProcesses&) = delete;
  HostProcesses& operator=(const HostProcesses&) = delete;
  ~HostProcesses();

  // Returns a rank whose process has ended, or nothing. Never waits.
  [[nodiscard]] std::optional<int> ended();

 private:
  std::vector<int> ranks_;  // [entry]
  std::vector<pollfd> entries_;
};

}  // namespace headroom
