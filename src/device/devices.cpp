#include "headroom/device/devices.h"

#include <fmt/ranges.h>

#include "headroom/core/error.h"
#include "headroom/cpu/cpu_backend.h"
#if defined(HEADROOM_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace headroom {
DeviceList list_devices() {
  DeviceList list;
  list.devices.push_back({{DeviceKind::cpu}, describe_cpu(), cpu_memory()});
#if defined(HEADROOM_WITH_CUDA)
  const CudaCount count = cuda_device_count();
  for (int i = 0; i < count.devices; ++i) {
    list.devices.push_back({{DeviceKind::cuda, i}, describe_cuda(i), cuda_memory(i)});
  }
  list.no_cuda_reason = count.reason;
#else
  list.no_cuda_reason = "this build has no CUDA backend";
#endif
  return list;
}

ListedDevice find_device(const Device& device) {
  DeviceList list = list_devices();
  std::vector<std::string> names;
  for (ListedDevice& listed : list.devices) {
    if (listed.device == device) return std::move(listed);
    names.push_back(to_string(listed.device));
  }
  const std::string why = list.no_cuda_reason.empty() ? "" : fmt::format(" ({})", list.no_cuda_reason);
  fail(ErrorKind::input, "device '{}' is not on this machine{}; there is {}", to_string(device), why,
       fmt::join(names, ", "));
}

std::unique_ptr<Backend> open_backend(const Device& device, int threads) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuBackend>(threads);
  static_cast<void>(find_device(device));
#if defined(HEADROOM_WITH_CUDA)
  return std::make_unique<CudaBackend>(device.index);
#else
  return nullptr;  // find_device has refused it
#endif
}

}  // namespace headroom
