#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/memory_status.h"
#include "headroom/cpu/cpu_backend.h"

namespace headroom {
namespace {

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
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

SimdLevel widest_simd_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return SimdLevel::avx512;
  }
  // F16C came before AVX2; compilers do not all know its name here.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SimdLevel::avx2;
  return SimdLevel::portable;
}

// HEADROOM_SIMD asks for less than the machine has, so that every level can be tested on it.
SimdLevel simd_level() {
  const SimdLevel widest = widest_simd_level();
  const char* forced = std::getenv("HEADROOM_SIMD");
  if (forced == nullptr) return widest;
  for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512}) {
    if (name(level) != forced) continue;
    check(level <= widest, "HEADROOM_SIMD={} is more than this machine has, which is {}", forced,
          name(widest));
    return level;
  }
  fail(ErrorKind::input, "HEADROOM_SIMD={} is unknown; use portable, avx2 or avx512", forced);
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
          .memory_bytes = host_memory().total_bytes,
          .l1_bytes = cache_bytes(1),
          .l2_bytes = cache_bytes(2),
          .l3_bytes = cache_bytes(3),
          .simd = simd_level(),
          .amx = amx_usable()};
}

}  // namespace headroom
