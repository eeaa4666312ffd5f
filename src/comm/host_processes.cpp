#include "comm/host_processes.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <string>

#include "headroom/core/checksum.h"

namespace headroom {

HostProcess HostProcess::self() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat names {};
  if (boot.empty() || stat("/proc/self/ns/pid", &names) != 0) return {.host = 0, .process = 0};
  const std::uint64_t system = crc32c(std::as_bytes(std::span(boot)));
  return {.host = system << 32 | (names.st_ino & 0xffff'ffff), .process = getpid()};
}

HostProcesses::HostProcesses(const std::vector<HostProcess>& ranks, int own) {
  const HostProcess& self = ranks[static_cast<std::size_t>(own)];
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const HostProcess& one = ranks[rank];
    if (self.process == 0 || one.host != self.host || one.process == self.process) continue;
    const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, one.process, 0));
    if (descriptor < 0) continue;
    ranks_.push_back(static_cast<int>(rank));
    entries_.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  }
}

HostProcesses::~HostProcesses() {
  for (const pollfd& entry : entries_) close(entry.fd);
}

std::optional<int> HostProcesses::ended() {
  if (poll(entries_.data(), entries_.size(), 0) <= 0) return std::nullopt;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if ((entries_[i].revents & POLLIN) != 0) return ranks_[i];
  }
  return std::nullopt;
}

}  // namespace headroom
