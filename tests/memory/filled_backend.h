// A backend whose memory is full of one byte when it is reserved: what a step reads without having written it
// shows in its results.
#pragma once

#include <memory>
#include <utility>

#include "headroom/memory/backend.h"

namespace headroom {

class FilledBackend final : public Backend {
 public:
  FilledBackend(std::unique_ptr<Backend> inner, std::uint8_t value)
      : inner_(std::move(inner)), value_(value) {}

  [[nodiscard]] Device device() const override { return inner_->device(); }
  [[nodiscard]] const DeviceDescription& description() const override { return inner_->description(); }
  [[nodiscard]] bool host_accessible(Space space) const override { return inner_->host_accessible(space); }
  [[nodiscard]] Stream stream(StreamId id) override { return inner_->stream(id); }
  void set_poll(PollHook poll) override { inner_->set_poll(poll); }
  void submit(StreamId id, const Task& task) override { inner_->submit(id, task); }
  void copy(StreamId id, void* to, const void* from, std::int64_t bytes) override {
    inner_->copy(id, to, from, bytes);
  }
  void fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) override {
    inner_->fill(id, data, value, bytes);
  }
  void record(StreamId id, std::uint32_t number) override { inner_->record(id, number); }
  void wait(StreamId waiter, std::uint32_t number) override { inner_->wait(waiter, number); }
  void wait_on_host(std::uint32_t number) override { inner_->wait_on_host(number); }
  void synchronize() override { inner_->synchronize(); }
  void mark(std::uint32_t number) override { inner_->mark(number); }
  [[nodiscard]] double seconds_between(std::uint32_t from, std::uint32_t to) override {
    return inner_->seconds_between(from, to);
  }

 private:
  [[nodiscard]] void* reserve_memory(Space space, std::int64_t bytes) override {
    void* data = inner_->reserve(space, bytes);
    inner_->fill(StreamId::main, data, value_, bytes);
    inner_->synchronize();
    return data;
  }
  void release_memory(Space space, void* data, std::int64_t bytes) noexcept override {
    inner_->release(space, data, bytes);
  }

  std::unique_ptr<Backend> inner_;
  std::uint8_t value_;
};

}  // namespace headroom
