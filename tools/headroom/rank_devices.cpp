#include "rank_devices.h"

#include "headroom/core/error.h"

namespace headroom {

std::vector<Device> devices_of_ranks(const std::vector<std::string>& names) {
  check(!names.empty(), "no device is given for the ranks");
  std::vector<Device> devices;
  for (const std::string& name : names) {
    devices.push_back(find_device(parse_device(name)).device);
    check(devices.back().kind == devices.front().kind,
          "ranks are all on the CPU or all on GPUs, not on {} and {}", names.front(), name);
  }
  return devices;
}

MakeBackend backends_of_ranks(const std::vector<Device>& devices, int threads) {
  return [devices, threads](int rank) { return open_backend(device_of_rank(devices, rank), threads); };
}

}  // namespace headroom
