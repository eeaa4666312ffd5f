// The interface between a Context and a device: reserve, copy, and keep streams in order. There is one
// implementation per kind of device; a phantom has none. Memory is reserved before a run. Everything else
// allocates nothing after its first use.
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "headroom/core/stream.h"
#include "headroom/memory/ledger.h"

namespace headroom {

// Work for a stream, kept by value in fixed storage so that queueing it allocates nothing.
class Task {
 public:
  static constexpr std::size_t kMaxBytes = 512;  // four tensor views and a few numbers

  Task() = default;
  template <std::invocable<const Stream&> Body>
    requires(std::is_trivially_copyable_v<Body> && sizeof(Body) <= kMaxBytes &&
             alignof(Body) <= alignof(std::max_align_t))
  explicit Task(const Body& body)
      : call_([](const std::byte* stored, const Stream& stream) {
          (*reinterpret_cast<const Body*>(stored))(stream);
        }) {
    std::memcpy(storage_, &body, sizeof(Body));
  }

  void operator()(const Stream& stream) const { call_(storage_, stream); }

 private:
  alignas(std::max_align_t) std::byte storage_[kMaxBytes] = {};
  void (*call_)(const std::byte*, const Stream&) = nullptr;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual Device device() const = 0;
  [[nodiscard]] virtual const DeviceDescription& description() const = 0;

  // Returns memory whose pages are present. Throws an error of kind memory where there is not enough.
  [[nodiscard]] void* reserve(Space space, std::int64_t bytes) {
    void* data = reserve_memory(space, bytes);
    reserved_bytes_[static_cast<std::size_t>(space)] += bytes;
    return data;
  }
  void release(Space space, void* data, std::int64_t bytes) noexcept {
    release_memory(space, data, bytes);
    reserved_bytes_[static_cast<std::size_t>(space)] -= bytes;
  }
  // What has been asked of the system and not given back: counted here, not planned.
  [[nodiscard]] std::int64_t reserved_bytes(Space space) const {
    return reserved_bytes_[static_cast<std::size_t>(space)];
  }
  // Whether the CPU may touch the space's memory (and a sanitizer may watch it).
  [[nodiscard]] virtual bool host_accessible(Space space) const = 0;

  [[nodiscard]] virtual Stream stream(StreamId id) = 0;
  // Called between the work items of main's kernels, on the thread that owns the backend. A device whose
  // kernels do not run on that thread never calls it.
  virtual void set_poll(PollHook poll) = 0;
  // Main runs at once on the calling thread; other streams may run later, in order.
  virtual void submit(StreamId id, const Task& task) = 0;
  virtual void copy(StreamId id, void* to, const void* from, std::int64_t bytes) = 0;
  virtual void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) = 0;
  // Records are numbered 0, 1, ... in each phase; a number is used again in the next one.
  virtual void record(StreamId id, std::uint32_t number) = 0;
  virtual void wait(StreamId waiter, std::uint32_t number) = 0;
  // Returns when everything before the record is done; raises what work on the record's stream raised.
  virtual void wait_on_host(std::uint32_t number) = 0;
  // Returns when every stream is idle, also where work has failed. The first error of work on a stream is
  // thrown here or at a wait.
  virtual void synchronize() = 0;

  // Marks this moment of main's work with a number of the caller's choice, from 0. A later mark may have the
  // same number and replaces this one.
  virtual void mark(std::uint32_t number) {
    if (marks_.size() <= number) marks_.resize(number + std::size_t{1});
    marks_[number] = std::chrono::steady_clock::now();
  }
  // Returns the seconds from one mark to a later one, as the device measured them. Waits until main has
  // passed both.
  [[nodiscard]] virtual double seconds_between(std::uint32_t from, std::uint32_t to) {
    return std::chrono::duration<double>(marks_.at(to) - marks_.at(from)).count();
  }

 private:
  [[nodiscard]] virtual void* reserve_memory(Space space, std::int64_t bytes) = 0;
  virtual void release_memory(Space space, void* data, std::int64_t bytes) noexcept = 0;

  std::array<std::int64_t, kSpaceCount> reserved_bytes_{};
  std::vector<std::chrono::steady_clock::time_point> marks_;  // of a backend whose main is the host
};

}  // namespace headroom
