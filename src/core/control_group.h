// What the control groups of this process allow (versions 1 and 2): the tightest of its own and those around
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace headroom {

struct ControlGroupLimits {
  struct Memory {
    std::int64_t limit_bytes = 0;
    std::int64_t free_bytes = 0;
  };
  std::optional<Memory> memory;  // nothing: no limit
  std::optional<int> cores;      // a quota of processor time, rounded up
};

// Reads the groups under `root` that `memberships` names; the defaults are the kernel's, for this process.
[[nodiscard]] ControlGroupLimits control_group_limits(
    const std::filesystem::path& root = "/sys/fs/cgroup",
    const std::filesystem::path& memberships = "/proc/self/cgroup");

}  // namespace headroom
