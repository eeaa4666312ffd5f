#include "headroom/device/devices.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "headroom/core/error.h"
#include "headroom/cpu/cpu_backend.h"
#if defined(HEADROOM_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace headroom {
namespace {

constexpr std::size_t kHoldersNamed = 3;

// Resident bytes of a process that are its own, not pages of files it shares.
std::int64_t own_bytes(const std::filesystem::path& process) {
  std::ifstream statm(process / "statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  std::int64_t shared = 0;
  if (!(statm >> size >> resident >> shared)) return 0;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

std::string process_name(const std::filesystem::path& process) {
  std::ifstream file(process / "comm");
  std::string name;
  std::getline(file, name);
  return name;
}

std::vector<MemoryHolder> host_memory_holders() {
  std::vector<MemoryHolder> holders;
  std::error_code ignored;  // processes come and go while we look
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string id = entry.path().filename();
    std::int64_t process = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), process);
    if (error != std::errc{} || end != id.data() + id.size() || process == getpid()) continue;
    const std::int64_t bytes = own_bytes(entry.path());
    if (bytes > 0) holders.push_back({process, process_name(entry.path()), bytes});
  }
  std::ranges::sort(holders, std::greater{}, &MemoryHolder::bytes);
  if (holders.size() > kHoldersNamed) holders.resize(kHoldersNamed);
  return holders;
}

ListedDevice list_cpu() {
  const HostMemory memory = host_memory();
  const std::int64_t others = memory.total_bytes - memory.free_bytes - own_bytes("/proc/self");
  return {{DeviceKind::cpu},
          describe_cpu(),
          {memory.total_bytes, memory.free_bytes, std::max<std::int64_t>(others, 0), host_memory_holders()}};
}

#if defined(HEADROOM_WITH_CUDA)
ListedDevice list_cuda(int index) {
  const CudaMemory memory = cuda_memory(index);
  MemoryStatus status{memory.total_bytes, memory.free_bytes, memory.held_by_others_bytes, {}};
  for (const CudaProcess& process : memory.processes) {
    status.holders.push_back({process.id,
                              process_name(std::filesystem::path("/proc") / std::to_string(process.id)),
                              process.bytes});
  }
  return {{DeviceKind::cuda, index}, describe_cuda(index), std::move(status)};
}
#endif

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  list.devices.push_back(list_cpu());
#if defined(HEADROOM_WITH_CUDA)
  const CudaCount count = cuda_device_count();
  for (int i = 0; i < count.devices; ++i) list.devices.push_back(list_cuda(i));
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

std::int64_t default_budget(const MemoryStatus& memory) {
  return std::max<std::int64_t>(memory.free_bytes - kOutsideArenaBytes, 0);
}

}  // namespace headroom
