// The devices of this machine: which there are, how much of their memory is free and who holds the rest, and
// the backend of each.
#pragma once

#include <cstdint>
#include <memory>
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

// Threads as in ThreadPool; a GPU has no use for them.
[[nodiscard]] std::unique_ptr<Backend> open_backend(const Device& device, int threads = 0);

}  // namespace headroom
