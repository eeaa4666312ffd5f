// A small pool of threads behind one parallel_for. Workers spin for a moment after a job and then sleep; work
// items are claimed one by one, so which thread runs an item is open and an item's result must not depend on
// it. Nested calls run on the thread they are made from. After fork() the child gets workers of its own when
// it first needs them.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "headroom/core/stream.h"

namespace headroom {

// A reference to something callable with an index; it must not outlive what it refers to.
class IndexFunction {
 public:
  template <std::invocable<std::int64_t> Body>
    requires(!std::same_as<std::remove_cvref_t<Body>, IndexFunction>)
  IndexFunction(Body&& body)
      : object_(const_cast<void*>(static_cast<const void*>(&body))),
        call_([](void* object, std::int64_t index) {
          (*static_cast<std::remove_reference_t<Body>*>(object))(index);
        }) {}

  void operator()(std::int64_t index) const { call_(object_, index); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t);
};

// Cores this process may use.
[[nodiscard]] int usable_cores();

// One thread at a time may call run.
class ThreadPool {
 public:
  // How many threads work together, the calling one included; 0 takes every core this process may use.
  explicit ThreadPool(int threads = 0);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] int threads() const { return threads_; }

  // body(0) ... body(count - 1), each once; returns when all are done. The calling thread polls between its
  // items. Where items throw, the one with the lowest index is thrown here and later items may not have run.
  void run(std::int64_t count, IndexFunction body, PollHook poll = {});

 private:
  struct Crew;  // the workers and the job they share

  int threads_;
  std::unique_ptr<Crew> crew_;
};

// On the stream's pool, or on the calling thread where it has none.
void parallel_for(const Stream& stream, std::int64_t count, IndexFunction body);

// f32 operations per second that the stream's threads reach together in a loop of nothing but multiply-adds:
// the limit that kernels are held against. Takes about ten milliseconds, so that it can be measured right
// beside what it is compared with: neighbours and temperature change a machine's speed from one moment to the
// next.
[[nodiscard]] double measured_peak_flops(const Stream& stream);

}  // namespace headroom
