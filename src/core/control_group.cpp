#include "core/control_group.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace headroom {
namespace {

namespace fs = std::filesystem;

// The first number of a file; "max" is none.
std::optional<std::int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (!(file >> number) || number < 0) return std::nullopt;
  return number;
}

// Whether "cpu,cpuacct" lists the controller; version 2 lists none.
bool lists(std::string_view controllers, std::string_view controller) {
  while (true) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == controller) return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
}

// Where the process is in a hierarchy: "0::/path" (version 2) or "4:memory:/path" (version 1).
std::string group_path(const fs::path& memberships, std::string_view controller) {
  std::ifstream file(memberships);
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (lists(controllers, controller)) return line.substr(std::min(second + 2, line.size()));
  }
  return {};
}

// Visits the folder of the process's group and every folder around it up to the root. Inside a container the
// path may not exist; the root then is the container's own group.
template <class Visit>
void visit_groups(const fs::path& root, const std::string& path, Visit visit) {
  std::error_code ignored;
  for (fs::path part = path; !part.empty(); part = part.parent_path()) {
    if (fs::is_directory(root / part, ignored)) visit(root / part);
  }
  visit(root);
}

void tighten_memory(ControlGroupLimits& limits, const fs::path& group, const char* limit_name,
                    const char* used_name) {
  const std::optional<std::int64_t> limit = read_number(group / limit_name);
  const std::optional<std::int64_t> used = read_number(group / used_name);
  if (!limit || !used) return;
  // Pages of files that nobody uses just now are counted as used and given up on demand.
  std::ifstream statistics(group / "memory.stat");
  std::string key;
  std::int64_t bytes = 0;
  std::int64_t reclaimable = 0;
  while (statistics >> key >> bytes) {
    if (key == "inactive_file") reclaimable = bytes;
  }
  const std::int64_t free = std::max<std::int64_t>(*limit - *used + reclaimable, 0);
  if (!limits.memory) limits.memory = {*limit, free};
  limits.memory->limit_bytes = std::min(limits.memory->limit_bytes, *limit);
  limits.memory->free_bytes = std::min(limits.memory->free_bytes, free);
}

void tighten_cores(ControlGroupLimits& limits, std::optional<std::int64_t> quota,
                   std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  const auto cores = static_cast<int>(std::clamp<std::int64_t>((*quota + *period - 1) / *period, 1, 1 << 20));
  limits.cores = std::min(limits.cores.value_or(cores), cores);
}

}  // namespace

ControlGroupLimits control_group_limits(const fs::path& root, const fs::path& memberships) {
  ControlGroupLimits limits;
  visit_groups(root, group_path(memberships, ""), [&](const fs::path& group) {
    tighten_memory(limits, group, "memory.max", "memory.current");
    std::ifstream cpu(group / "cpu.max");  // "quota period" or "max period"
    std::int64_t quota = 0;
    std::int64_t period = 0;
    if (cpu >> quota >> period) tighten_cores(limits, quota, period);
  });
  visit_groups(root / "memory", group_path(memberships, "memory"), [&](const fs::path& group) {
    tighten_memory(limits, group, "memory.limit_in_bytes", "memory.usage_in_bytes");
  });
  visit_groups(root / "cpu", group_path(memberships, "cpu"), [&](const fs::path& group) {
    tighten_cores(limits, read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us"));
  });
  return limits;
}

}  // namespace headroom
