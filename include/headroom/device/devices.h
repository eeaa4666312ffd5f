// The devices of this machine: which there are, how much of their memory is free and who holds the rest, and
// the backend of each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headroom/core/device.h"
#include "headroom/memory/backend.h"

namespace headroom {

struct MemoryHolder {
  std::int64_t process = 0;
  std::string name;
  std::int64_t bytes = 0;
};

struct MemoryStatus {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  std::int64_t held_by_others_bytes = 0;  // everything that is neither free nor ours
  std::vector<MemoryHolder> holders;      // the largest of those others, as far as the system names them
};

struct ListedDevice {
  Device device;
  DeviceDescription description;
  MemoryStatus memory;
};

struct DeviceList {
  std::vector<ListedDevice> devices;  // the CPU first
  std::string no_cuda_reason;         // where there is no GPU in the list: why
};

[[nodiscard]] DeviceList list_devices();

// The device as listed; an unknown one is an error that names what there is.
[[nodiscard]] ListedDevice find_device(const Device& device);

// Threads as in ThreadPool; a GPU has no use for them.
[[nodiscard]] std::unique_ptr<Backend> open_backend(const Device& device, int threads = 0);

// Bytes that a run may plan with when nobody names a budget: what is free now, less what lies outside the
// arena.
inline constexpr std::int64_t kOutsideArenaBytes = std::int64_t{64} << 20;
[[nodiscard]] std::int64_t default_budget(const MemoryStatus& memory);

}  // namespace headroom
