// The CPU as a device: an arena is one mapping, main is the calling thread with its pool, and the copy and
// communication streams are one thread each that works through its tasks in order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "headroom/cpu/thread_pool.h"
#include "headroom/memory/backend.h"

namespace headroom {

[[nodiscard]] DeviceDescription describe_cpu();

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads = 0);  // as ThreadPool
  ~CpuBackend() override;

  [[nodiscard]] Device device() const override { return {DeviceKind::cpu}; }
  [[nodiscard]] const DeviceDescription& description() const override { return description_; }
  [[nodiscard]] bool host_accessible(Space) const override { return true; }
  [[nodiscard]] Stream stream(StreamId id) override;
  void set_poll(PollHook poll) override { poll_ = poll; }
  void submit(StreamId id, const Task& task) override;
  void copy(StreamId id, void* to, const void* from, std::int64_t bytes) override;
  void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) override;
  void record(StreamId id, std::uint32_t number) override;
  void wait(StreamId waiter, std::uint32_t number) override;
  void wait_on_host(std::uint32_t number) override;
  void synchronize() override;

 private:
  [[nodiscard]] void* reserve_memory(Space space, std::int64_t bytes) override;
  void release_memory(Space space, void* data, std::int64_t bytes) noexcept override;
  class SideStream;  // a thread and its tasks
  struct Record {
    StreamId stream = StreamId::main;
    std::uint64_t tasks = 0;  // submitted to the stream before the record
  };

  SideStream& side(StreamId id);
  // After fork the thread of a side stream is the parent's: its handle must not be touched here.
  static void leave_to_parent(std::unique_ptr<SideStream>& side);

  DeviceDescription description_;
  ThreadPool pool_;
  PollHook poll_;
  std::array<std::unique_ptr<SideStream>, kStreamCount> sides_;  // started at their first task; main has none
  std::vector<Record> records_;
};

}  // namespace headroom
