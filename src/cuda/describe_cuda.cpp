#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"

namespace headroom {
namespace {

// The driver's management library names the processes on a GPU. It comes with the driver, not with the
// toolkit, so it is opened when needed and its few types are written down here.
class ManagementLibrary {
 public:
  struct ProcessInfo {  // nvmlProcessInfo_t, version 3
    unsigned process;
    unsigned long long bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
  };

  ManagementLibrary() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ != nullptr && call<int()>("nvmlInit_v2") != nullptr)
      started_ = call<int()>("nvmlInit_v2")() == 0;
  }
  ManagementLibrary(const ManagementLibrary&) = delete;
  ManagementLibrary& operator=(const ManagementLibrary&) = delete;
  ~ManagementLibrary() {
    if (started_) call<int()>("nvmlShutdown")();
    if (library_ != nullptr) dlclose(library_);
  }

  [[nodiscard]] std::vector<ProcessInfo> processes(const char* pci_bus_id) const {
    if (!started_) return {};
    const auto find = call<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    const auto list = call<int(void*, unsigned*, ProcessInfo*)>("nvmlDeviceGetComputeRunningProcesses_v3");
    void* device = nullptr;
    if (find == nullptr || list == nullptr || find(pci_bus_id, &device) != 0) return {};
    std::vector<ProcessInfo> found(256);  // more processes than one GPU carries; with more, none is named
    auto count = static_cast<unsigned>(found.size());
    if (list(device, &count, found.data()) != 0) return {};
    found.resize(count);
    return found;
  }

 private:
  template <class Signature>
  [[nodiscard]] Signature* call(const char* symbol) const {
    return reinterpret_cast<Signature*>(dlsym(library_, symbol));
  }

  void* library_;
  bool started_ = false;
};

int attribute(int index, cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

CudaCount cuda_device_count() {
  CudaCount count;
  const cudaError_t code = cudaGetDeviceCount(&count.devices);
  if (code == cudaSuccess && count.devices > 0) return count;
  count.devices = 0;
  int driver = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  count.reason = driver == 0           ? "no NVIDIA driver is installed"
                 : code == cudaSuccess ? "no CUDA device is present"
                                       : cudaGetErrorString(code);
  static_cast<void>(cudaGetLastError());  // a machine without a GPU is no error
  return count;
}

DeviceDescription describe_cuda(int index) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return {.kind = DeviceKind::cuda,
          .name = properties.name,
          .cores = properties.multiProcessorCount,
          .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
          .l1_bytes = attribute(index, cudaDevAttrMaxSharedMemoryPerMultiprocessor),
          .l2_bytes = properties.l2CacheSize,
          .compute_major = properties.major,
          .compute_minor = properties.minor,
          .product_library = fmt::format("cuBLASLt {}", cublasLtGetVersion())};
}

MemoryStatus cuda_memory(int index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  MemoryStatus memory{static_cast<std::int64_t>(total_bytes), static_cast<std::int64_t>(free_bytes), 0, {}};

  char bus_id[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "cudaDeviceGetPCIBusId");
  std::int64_t own = 0;
  constexpr unsigned long long kNotAvailable = ~0ull;
  for (const auto& process : ManagementLibrary().processes(bus_id)) {
    const std::int64_t bytes = process.bytes == kNotAvailable ? 0 : static_cast<std::int64_t>(process.bytes);
    if (process.process == static_cast<unsigned>(getpid())) {
      own = bytes;
    } else {
      memory.holders.push_back({process.process, {}, bytes});
    }
  }
  name_largest(memory.holders);
  memory.held_by_others_bytes = std::max<std::int64_t>(memory.total_bytes - memory.free_bytes - own, 0);
  return memory;
}

}  // namespace headroom
