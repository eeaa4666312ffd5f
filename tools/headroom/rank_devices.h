// The devices of ranks as people give them: a list that ranks take in turn.
#pragma once

#include <string>
#include <vector>

#include "headroom/device.h"
#include "ring_run.h"

namespace headroom {

// Throws where one is not on this machine, or where CPU and GPUs are mixed.
[[nodiscard]] std::vector<Device> devices_of_ranks(const std::vector<std::string>& names);

[[nodiscard]] inline Device device_of_rank(const std::vector<Device>& devices, int rank) {
  return devices[static_cast<std::size_t>(rank) % devices.size()];
}

// A backend for each rank, with so many threads on a CPU.
[[nodiscard]] MakeBackend backends_of_ranks(const std::vector<Device>& devices, int threads = 1);

}  // namespace headroom
