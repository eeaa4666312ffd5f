#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "headroom/core/bytes.h"
#include "headroom/cpu/cpu_backend.h"

namespace headroom {
namespace {

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// "Field:   12345 kB" of /proc/meminfo, in bytes.
std::int64_t meminfo(std::string_view field) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key.size() == field.size() + 1 && key.starts_with(field)) return kib * kKiB;
  }
  return 0;
}

std::optional<std::int64_t> read_number(const std::string& path) {
  const std::optional<std::string> line = read_line(path);
  if (!line || line->empty() || line->find_first_not_of("0123456789") != std::string::npos ||
      line->size() > 18) {
    return std::nullopt;  // "max" is without limit
  }
  return std::stoll(*line);
}

// What this process's control group still allows (version 2 and 1); nothing without a limit.
struct GroupMemory {
  std::int64_t limit_bytes = 0;
  std::int64_t free_bytes = 0;
};
std::optional<GroupMemory> control_group_memory() {
  struct Files {
    const char* limit;
    const char* used;
    const char* statistics;
  };
  for (const Files& files :
       {Files{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
        Files{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
              "/sys/fs/cgroup/memory/memory.stat"}}) {
    const std::optional<std::int64_t> limit = read_number(files.limit);
    const std::optional<std::int64_t> used = read_number(files.used);
    if (!limit || !used) continue;
    // Pages of files that nobody uses just now are counted as used and given up on demand.
    std::ifstream statistics(files.statistics);
    std::string key;
    std::int64_t bytes = 0;
    std::int64_t reclaimable = 0;
    while (statistics >> key >> bytes) {
      if (key == "inactive_file") reclaimable = bytes;
    }
    return GroupMemory{*limit, std::max<std::int64_t>(*limit - *used + reclaimable, 0)};
  }
  return std::nullopt;
}

std::int64_t total_memory() {
  const std::int64_t machine = meminfo("MemTotal");
  const auto group = control_group_memory();
  return group ? std::min(machine, group->limit_bytes) : machine;
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

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

// Data caches of core 0 as the kernel lists them: "48K", "2048K".
std::int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    if (read_line(folder + "level") != std::to_string(level)) continue;
    if (read_line(folder + "type") == "Instruction") continue;
    const std::string size = read_line(folder + "size").value_or("");
    if (size.size() < 2) continue;
    const std::int64_t unit = size.back() == 'K' ? kKiB : size.back() == 'M' ? kMiB : 1;
    return std::atoll(size.c_str()) * unit;
  }
  return 0;
}

SimdLevel simd_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return SimdLevel::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SimdLevel::avx2;
  return SimdLevel::portable;
}

// Leaf 7 says whether the chip has AMX with bf16; the kernel then has to permit the tile registers. The
// palette's own leaf (0x1D) is not asked: virtual machines hide it.
bool amx_usable() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

DeviceDescription describe_cpu() {
  return {.kind = DeviceKind::cpu,
          .name = processor_name(),
          .cores = usable_cores(),
          .memory_bytes = total_memory(),
          .l1_bytes = cache_bytes(1),
          .l2_bytes = cache_bytes(2),
          .l3_bytes = cache_bytes(3),
          .simd = simd_level(),
          .amx = amx_usable()};
}

MemoryStatus cpu_memory() {
  MemoryStatus memory{total_memory(), meminfo("MemAvailable"), 0, {}};
  if (const auto group = control_group_memory())
    memory.free_bytes = std::min(memory.free_bytes, group->free_bytes);
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
