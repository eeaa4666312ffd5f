#include "headroom/core/memory_status.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/control_group.h"
#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

// "Field:   12345 kB" of /proc/meminfo or /proc/self/status, in bytes; 0 where there is none.
std::int64_t kernel_figure(const char* path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.size() <= field.size() || !line.starts_with(field) || line[field.size()] != ':') continue;
    return std::strtoll(line.c_str() + field.size() + 1, nullptr, 10) * kKiB;
  }
  return 0;
}
std::int64_t meminfo(std::string_view field) {
  return kernel_figure("/proc/meminfo", field);
}

// Resident bytes of a process that are its own, not pages of files it shares.
std::int64_t own_bytes(const std::filesystem::path& process) {
  std::ifstream statm(process / "statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  std::int64_t shared = 0;
  if (!(statm >> size >> resident >> shared)) return 0;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t process_resident_bytes() {
  return kernel_figure("/proc/self/status", "RssAnon") + kernel_figure("/proc/self/status", "RssShmem");
}

std::int64_t process_mapped_bytes() {
  return kernel_figure("/proc/self/status", "RssFile");
}

std::string describe_holders(const MemoryStatus& memory) {
  std::string text = fmt::format("held by others {}", format_bytes(memory.held_by_others_bytes));
  for (std::size_t i = 0; i < memory.holders.size(); ++i) {
    const MemoryHolder& holder = memory.holders[i];
    text += fmt::format("{}{} [{}] {}", i == 0 ? "; most: " : ", ", holder.name, holder.process,
                        format_bytes(holder.bytes));
  }
  return text;
}

void name_largest(std::vector<MemoryHolder>& holders) {
  constexpr std::size_t kNamed = 3;
  std::ranges::sort(holders, std::greater{}, &MemoryHolder::bytes);
  if (holders.size() > kNamed) holders.resize(kNamed);
  for (MemoryHolder& holder : holders) {
    std::ifstream file(fmt::format("/proc/{}/comm", holder.process));
    if (!std::getline(file, holder.name)) holder.name = "process";  // of another container, or gone
  }
}

void check_free(const MemoryStatus& memory, std::int64_t bytes, std::string_view device) {
  if (bytes <= memory.free_bytes) return;
  fail(ErrorKind::memory, "{} ({} bytes) are needed and {} of {} are free on {}; {}", format_bytes(bytes),
       format_count(bytes), format_bytes(memory.free_bytes), format_bytes(memory.total_bytes), device,
       describe_holders(memory));
}

MemoryStatus host_memory() {
  MemoryStatus memory{meminfo("MemTotal"), meminfo("MemAvailable"), 0, {}};
  if (const auto group = control_group_limits().memory) {
    memory.total_bytes = std::min(memory.total_bytes, group->limit_bytes);
    memory.free_bytes = std::min(memory.free_bytes, group->free_bytes);
  }
  memory.held_by_others_bytes =
      std::max<std::int64_t>(memory.total_bytes - memory.free_bytes - own_bytes("/proc/self"), 0);
  std::error_code ignored;  // processes come and go while we look
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string id = entry.path().filename();
    std::int64_t process = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), process);
    if (error != std::errc{} || end != id.data() + id.size() || process == getpid()) continue;
    if (const std::int64_t bytes = own_bytes(entry.path()); bytes > 0)
      memory.holders.push_back({process, {}, bytes});
  }
  name_largest(memory.holders);
  return memory;
}

}  // namespace headroom
