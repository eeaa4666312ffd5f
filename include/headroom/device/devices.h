// The devices of this machine: which there are, how much of their memory is free and who holds the rest, and
// the backend of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/device.h"
#include "headroom/core/memory_status.h"
#include "headroom/memory/backend.h"

namespace headroom {

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

// Devices that ranks take in turn, from their names. Throws where one is not on this machine, or where CPU
// and GPUs are mixed.
[[nodiscard]] std::vector<Device> devices_of_ranks(const std::vector<std::string>& names);
[[nodiscard]] inline Device device_of_rank(const std::vector<Device>& devices, int rank) {
  return devices[static_cast<std::size_t>(rank) % devices.size()];
}
// How many of so many ranks on one host have the device of one of them.
[[nodiscard]] int ranks_on_device(const std::vector<Device>& devices, int rank, int ranks);

// What a run may take of a device's memory, or of the host's for what is offloaded.
struct MemoryBudget {
  std::int64_t bytes = 0;
  std::string arithmetic{};  // "139 GiB free less 512 MiB for ..."; empty where somebody named the bytes
};
// Without a number: what is free now, less what lies outside of the arenas of so many processes. A GPU is to
// be asked when its backend is open, because the backend takes memory too.
[[nodiscard]] MemoryBudget device_budget(const ListedDevice& device, std::optional<std::int64_t> asked,
                                         int processes = 1);
// The host's memory for what a GPU offloads. Without a number: what is free now, less a reserve.
[[nodiscard]] MemoryBudget host_budget(const MemoryStatus& host, std::optional<std::int64_t> asked);

// Threads as in ThreadPool; a GPU has no use for them.
[[nodiscard]] std::unique_ptr<Backend> open_backend(const Device& device, int threads = 0);

}  // namespace headroom
