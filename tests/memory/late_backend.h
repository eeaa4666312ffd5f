// A CPU whose main stream is late, as a GPU's is: what main copies into host memory is there for the host to
// read when it has waited for it, and not before.
#pragma once

#include <algorithm>
#include <cstddef>
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

  [[nodiscard]] Device device() const override { return cpu_.device(); }
  [[nodiscard]] const DeviceDescription& description() const override { return description_; }
  [[nodiscard]] bool host_accessible(Space space) const override { return cpu_.host_accessible(space); }
  [[nodiscard]] Stream stream(StreamId id) override { return cpu_.stream(id); }
  void submit(StreamId id, const Task& task) override { cpu_.submit(id, task); }
  void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) override {
    cpu_.fill(id, data, value, bytes);
  }
  void record(StreamId id, std::uint32_t number) override { cpu_.record(id, number); }

  // Kernels have run by now, so what the copy reads is what stands there in the order of the stream.
  void copy(StreamId id, void* to, const void* from, std::int64_t bytes) override {
    if (id != StreamId::main || !is_host_memory(to)) return cpu_.copy(id, to, from, bytes);
    const auto* data = static_cast<const std::byte*>(from);
    late_.emplace_back(static_cast<std::byte*>(to), std::vector<std::byte>(data, data + bytes));
  }
  void wait(StreamId waiter, std::uint32_t number) override {
    if (waiter != StreamId::main) arrive();
    cpu_.wait(waiter, number);
  }
  void synchronize() override {
    arrive();
    cpu_.synchronize();
  }

 private:
  [[nodiscard]] void* reserve_memory(Space space, std::int64_t bytes) override {
    void* data = cpu_.reserve(space, bytes);
    if (space == Space::host) host_[static_cast<std::byte*>(data)] = bytes;
    return data;
  }
  void release_memory(Space space, void* data, std::int64_t bytes) noexcept override {
    host_.erase(static_cast<std::byte*>(data));
    cpu_.release(space, data, bytes);
  }

  [[nodiscard]] bool is_host_memory(void* data) const {
    auto* address = static_cast<std::byte*>(data);
    const auto after = host_.upper_bound(address);
    return after != host_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }
  void arrive() {
    for (const auto& [to, bytes] : late_) std::copy(bytes.begin(), bytes.end(), to);
    late_.clear();
  }

  CpuBackend cpu_;
  DeviceDescription description_;
  std::map<std::byte*, std::int64_t> host_;  // what is reserved of the host's memory
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> late_;
};

}  // namespace headroom
