#include "rank_devices.h"

namespace headroom {

MakeBackend backends_of_ranks(const std::vector<Device>& devices, int threads) {
  return [devices, threads](int rank) { return open_backend(device_of_rank(devices, rank), threads); };
}

}  // namespace headroom
