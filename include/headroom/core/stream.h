// What a kernel needs of the place it runs on: the stream. On a CPU that is a thread pool and a poll hook; on
// a GPU the driver's stream and the libraries of its maker. Another framework that calls our kernels fills
// one in itself.
#pragma once

#include <cstdint>
#include <string_view>

#include "headroom/core/device.h"

namespace headroom {

class ThreadPool;       // headroom/cpu/thread_pool.h
class VendorLibraries;  // src/cuda/vendor_libraries.h

// Order of work within a device. Allocation and free belong to main; the others wait for it and it for them.
enum class StreamId : std::uint8_t { main, copy, communication };
inline constexpr int kStreamCount = 3;
[[nodiscard]] constexpr std::string_view name(StreamId id) {
  constexpr std::string_view kNames[kStreamCount] = {"main", "copy", "communication"};
  return kNames[static_cast<int>(id)];
}

// Called on the owning thread between work items, so that messages make progress while kernels run.
struct PollHook {
  void (*call)(void* state) = nullptr;
  void* state = nullptr;

  void operator()() const {
    if (call != nullptr) call(state);
  }
};

struct Stream {
  const DeviceDescription* device = nullptr;
  ThreadPool* pool = nullptr;  // CPU; null runs on the calling thread
  PollHook poll;               // CPU
  void* native = nullptr;      // GPU: the driver's stream
  // GPU: the handles of its maker's libraries and the algorithms chosen from them. The backend owns them.
  VendorLibraries* libraries = nullptr;
};

}  // namespace headroom
