// Backends of ranks on the devices that people give: a list that ranks take in turn.
#pragma once

#include <vector>

#include "headroom/device.h"
#include "ring_run.h"

namespace headroom {

// A backend for each rank, with so many threads on a CPU.
[[nodiscard]] MakeBackend backends_of_ranks(const std::vector<Device>& devices, int threads = 1);

}  // namespace headroom
