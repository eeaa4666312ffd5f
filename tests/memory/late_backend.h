// A CPU whose main stream is late, as a GPU's is. What main copies out of host memory is read, and what it
// copies into host memory is there, when somebody waits for it and not before. Kernels run at once, after the
// copies that main was given before them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "headroom/cpu.h"

namespace headroom {

class LateBackend final : public Backend {
 public:
  explicit LateBackend(int threads) : cpu_(threads), description_(cpu_.description()) {}
  // Says that it is another device; the kernels of that device must not be run.
  explicit LateBackend(DeviceDescription played) : cpu_(1), description_(std::move(played)) {}
  // A CPU whose memory the host reaches by copies alone.
  [[nodiscard]] static DeviceDescription apart(int threads) {
    DeviceDescription description = describe_cpu();
    description.cores = threads;
    description.separate_memory = true;
    return description;
  }

  [[nodiscard]] std::int64_t host_copies() const { return host_copies_; }  // from or to host memory, on main

  [[nodiscard]] Device device() const override { return cpu_.device(); }
  [[nodiscard]] const DeviceDescription& description() const override { return description_; }
  [[nodiscard]] bool host_accessible(Space space) const override { return cpu_.host_accessible(space); }
  [[nodiscard]] Stream stream(StreamId id) override {
    if (id == StreamId::main) execute();
    Stream stream = cpu_.stream(id);
    stream.device = &description_;
    return stream;
  }
  void set_poll(PollHook poll) override { cpu_.set_poll(poll); }
  void submit(StreamId id, const Task& task) override {
    if (id == StreamId::main) execute();
    cpu_.submit(id, task);
  }
  void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) override {
    if (id == StreamId::main) execute();
    cpu_.fill(id, data, value, bytes);
  }
  void record(StreamId id, std::uint32_t number) override {
    records_[number] = {id, given_};
    cpu_.record(id, number);
  }

  void copy(StreamId id, void* to, const void* from, std::int64_t bytes) override {
    if (id != StreamId::main) return cpu_.copy(id, to, from, bytes);
    const bool to_host = is_host_memory(to);
    if (!to_host && !is_host_memory(from)) {
      execute();
      return cpu_.copy(id, to, from, bytes);
    }
    ++host_copies_;
    ++given_;
    late_.push_back({.to = static_cast<std::byte*>(to),
                     .from = static_cast<const std::byte*>(from),
                     .bytes = static_cast<std::size_t>(bytes),
                     .to_host = to_host,
                     .seen = {}});
  }
  void wait(StreamId waiter, std::uint32_t number) override {
    if (waiter != StreamId::main) arrive_before(number);
    cpu_.wait(waiter, number);
  }
  void wait_on_host(std::uint32_t number) override {
    arrive_before(number);
    cpu_.wait_on_host(number);
  }
  void synchronize() override {
    arrive(given_);
    cpu_.synchronize();
  }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
    bool to_host;
    std::vector<std::byte> seen;  // of a copy to the host: what it read
    bool executed = false;
  };
  struct Record {
    StreamId stream = StreamId::main;
    std::uint64_t copies = 0;  // that main was given before
  };

  [[nodiscard]] void* reserve_memory(Space space, std::int64_t bytes) override {
    void* data = cpu_.reserve(space, bytes);
    if (space == Space::host) host_[static_cast<std::byte*>(data)] = bytes;
    return data;
  }
  void release_memory(Space space, void* data, std::int64_t bytes) noexcept override {
    host_.erase(static_cast<std::byte*>(data));
    cpu_.release(space, data, bytes);
  }

  [[nodiscard]] bool is_host_memory(const void* data) const {
    auto* address = static_cast<std::byte*>(const_cast<void*>(data));
    const auto after = host_.upper_bound(address);
    return after != host_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }
  // On the device every copy that main was given is done.
  void execute() {
    for (Copy& copy : late_) {
      if (std::exchange(copy.executed, true)) continue;
      if (copy.to_host) {
        copy.seen.assign(copy.from, copy.from + copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
  }
  // And the host sees the first of them.
  void arrive(std::uint64_t copies) {
    execute();
    while (!late_.empty() && given_ - late_.size() < copies) {
      const Copy& copy = late_.front();
      std::ranges::copy(copy.seen, copy.to);
      late_.erase(late_.begin());
    }
  }
  void arrive_before(std::uint32_t record) {
    const auto [stream, copies] = records_.at(record);
    if (stream == StreamId::main) arrive(copies);
  }

  CpuBackend cpu_;
  DeviceDescription description_;
  std::map<std::byte*, std::int64_t> host_;  // what is reserved of the host's memory
  std::vector<Copy> late_;
  std::uint64_t given_ = 0;  // copies between the host and the device, on main
  std::int64_t host_copies_ = 0;
  std::map<std::uint32_t, Record> records_;
};

}  // namespace headroom
