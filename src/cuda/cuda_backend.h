// A CUDA GPU as a device: the arena is one cudaMalloc, host staging is pinned, streams and records are the
// driver's. It owns the handles of NVIDIA's libraries, which kernels reach through their Stream.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headroom/core/memory_status.h"
#include "headroom/memory/backend.h"

struct CUstream_st;  // the driver's types without its headers
struct CUevent_st;

namespace headroom {

struct CudaCount {
  int devices = 0;
  std::string reason;  // why there are none
};
[[nodiscard]] CudaCount cuda_device_count();
[[nodiscard]] DeviceDescription describe_cuda(int index);

[[nodiscard]] MemoryStatus cuda_memory(int index);

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;

  [[nodiscard]] Device device() const override { return {DeviceKind::cuda, index_}; }
  [[nodiscard]] const DeviceDescription& description() const override { return description_; }
  [[nodiscard]] bool host_accessible(Space space) const override { return space == Space::host; }
  [[nodiscard]] Stream stream(StreamId id) override;
  void set_poll(PollHook) override {}  // the host is free while kernels run
  void submit(StreamId id, const Task& task) override;
  void copy(StreamId id, void* to, const void* from, std::int64_t bytes) override;
  void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) override;
  void record(StreamId id, std::uint32_t number) override;
  void wait(StreamId waiter, std::uint32_t number) override;
  void wait_on_host(std::uint32_t number) override;
  void synchronize() override;
  void mark(std::uint32_t number) override;
  [[nodiscard]] double seconds_between(std::uint32_t from, std::uint32_t to) override;

 private:
  [[nodiscard]] void* reserve_memory(Space space, std::int64_t bytes) override;
  void release_memory(Space space, void* data, std::int64_t bytes) noexcept override;
  int index_;
  DeviceDescription description_;
  std::array<CUstream_st*, kStreamCount> streams_{};
  // One per number, made at its first use.
  std::vector<CUevent_st*> records_;
  std::vector<CUevent_st*> marks_;
  std::unique_ptr<VendorLibraries> libraries_;
};

}  // namespace headroom
