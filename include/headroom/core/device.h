// Devices: which one (cpu, cuda:N), and what it is (DeviceDescription). A phantom plays a device from its
// description alone, so every choice that depends on hardware asks the description, never the machine.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/core/dtype.h"

namespace headroom {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;         // of the GPU
  bool phantom = false;  // plays the device: all the bookkeeping, no storage and no arithmetic

  auto operator<=>(const Device&) const = default;
};

// "cpu", "cuda" (= cuda:0) or "cuda:N".
[[nodiscard]] Device parse_device(std::string_view text);
[[nodiscard]] std::string to_string(const Device& device);

enum class SimdLevel : std::uint8_t { portable, avx2, avx512 };
[[nodiscard]] std::string_view name(SimdLevel level);

// Where a rate comes from; an unknown rate is 0.
enum class RateSource : std::uint8_t {
  unknown,
  published,  // by its maker
  scaled,     // published, times what a like device reaches of its own
  measured
};

struct DeviceDescription {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;               // as its maker calls it
  int cores = 1;                  // CPU cores this process may use, or streaming multiprocessors
  std::int64_t memory_bytes = 0;  // capacity, before anybody takes any of it
  std::int64_t l1_bytes = 0;      // per core: L1 data cache, or shared memory per multiprocessor
  std::int64_t l2_bytes = 0;      // per core on a CPU, of the whole chip on a GPU
  std::int64_t l3_bytes = 0;      // 0 where there is none

  SimdLevel simd = SimdLevel::portable;  // CPU
  bool amx = false;                      // CPU: AMX tiles, with the kernel's permission to use them
  bool separate_memory = false;  // CPU: the host reaches its memory by copies alone, as it does a GPU's
  int compute_major = 0;         // GPU: compute capability
  int compute_minor = 0;
  std::string product_library{};  // GPU: what multiplies matrices, with its version; empty: not known

  RateSource rate_source = RateSource::unknown;
  double f32_flops = 0;                   // per second, all cores, no tensor cores
  double half_flops = 0;                  // bf16 or f16, whichever is the default's
  double memory_bytes_per_second = 0;     // read plus written
  double host_link_bytes_per_second = 0;  // GPU: from or to pinned host memory, one way at a time

  // Whether the host reads and writes the device's memory in place.
  [[nodiscard]] bool host_accessible() const { return kind == DeviceKind::cpu && !separate_memory; }
};

// The dtype that is fast on a device, and why in one line.
struct DTypeChoice {
  DType dtype;
  std::string reason;
};
[[nodiscard]] DTypeChoice default_dtype(const DeviceDescription& device);

// Why asking for this dtype on this device is a bad idea; nothing where it is fine.
[[nodiscard]] std::optional<std::string> dtype_warning(const DeviceDescription& device, DType dtype);

}  // namespace headroom
