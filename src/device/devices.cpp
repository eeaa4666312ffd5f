#include "headroom/device/devices.h"

#include <algorithm>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/cpu/cpu_backend.h"
#if defined(HEADROOM_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace headroom {
namespace {

ListedDevice list_cpu() {
  return {{DeviceKind::cpu}, describe_cpu(), host_memory()};
}

#if defined(HEADROOM_WITH_CUDA)
ListedDevice list_cuda(int index) {
  return {{DeviceKind::cuda, index}, describe_cuda(index), cuda_memory(index)};
}
#else
struct CudaCount {
  int devices = 0;
  std::string reason = "this build has no CUDA backend";
};
CudaCount cuda_device_count() {
  return {};
}
ListedDevice list_cuda(int) {
  return {};
}
#endif

// What a GPU's driver takes after its backend is open: it loads a module of kernels at the first launch of
// one of them, ours and cuBLASLt's.
constexpr std::int64_t kLaterModulesBytes = 512 * kMiB;
// Left to everybody else on the host: memory that is pinned for a GPU cannot be swapped out.
constexpr std::int64_t kHostReserveBytes = 4 * kGiB;

MemoryBudget free_less(std::int64_t free_bytes, std::int64_t less_bytes, std::string_view for_what) {
  return {
      std::max<std::int64_t>(free_bytes - less_bytes, 0),
      fmt::format("{} free less {} for {}", format_bytes(free_bytes), format_bytes(less_bytes), for_what)};
}

// A GPU is only asked about when it is the one: asking creates a context on it, which takes its memory.
void check_exists(const Device& device) {
  if (device.kind == DeviceKind::cpu) return;
  const CudaCount count = cuda_device_count();
  if (device.index < count.devices) return;
  std::string names = "cpu";
  for (int i = 0; i < count.devices; ++i) names += fmt::format(", cuda:{}", i);
  const std::string why = count.reason.empty() ? "" : fmt::format(" ({})", count.reason);
  fail(ErrorKind::input, "device '{}' is not on this machine{}; there is {}", to_string(device), why, names);
}

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  list.devices.push_back(list_cpu());
  const CudaCount count = cuda_device_count();
  for (int i = 0; i < count.devices; ++i) list.devices.push_back(list_cuda(i));
  list.no_cuda_reason = count.reason;
  return list;
}

ListedDevice find_device(const Device& device) {
  check_exists(device);
  return device.kind == DeviceKind::cpu ? list_cpu() : list_cuda(device.index);
}

MemoryBudget device_budget(const ListedDevice& device, std::optional<std::int64_t> asked, int processes) {
  if (asked) return {*asked};
  if (device.device.kind == DeviceKind::cpu)
    return free_less(device.memory.free_bytes, kOutsideArenaBytes, "the program itself");
  return free_less(device.memory.free_bytes, processes * kLaterModulesBytes,
                   "kernels that are loaded at their first use");
}

MemoryBudget host_budget(const MemoryStatus& host, std::optional<std::int64_t> asked) {
  if (asked) return {*asked};
  return free_less(host.free_bytes, kHostReserveBytes, "everybody else");
}

std::unique_ptr<Backend> open_backend(const Device& device, int threads) {
  check_exists(device);
#if defined(HEADROOM_WITH_CUDA)
  if (device.kind == DeviceKind::cuda) return std::make_unique<CudaBackend>(device.index);
#endif
  return std::make_unique<CpuBackend>(threads);
}

std::vector<Device> devices_of_ranks(const std::vector<std::string>& names) {
  check(!names.empty(), "no device is given for the ranks");
  std::vector<Device> devices;
  for (const std::string& name : names) {
    devices.push_back(parse_device(name));
    check_exists(devices.back());
    check(devices.back().kind == devices.front().kind,
          "ranks are all on the CPU or all on GPUs, not on {} and {}", names.front(), name);
  }
  return devices;
}

int ranks_on_device(const std::vector<Device>& devices, int rank, int ranks) {
  int sharing = 0;
  for (int other = 0; other < ranks; ++other) {
    sharing += device_of_rank(devices, other) == device_of_rank(devices, rank) ? 1 : 0;
  }
  return sharing;
}

}  // namespace headroom
