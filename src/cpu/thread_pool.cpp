#include "headroom/cpu/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/control_group.h"
#include "cpu/fork.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

// About 40 us on a 3 GHz core: longer than the gap between two kernels of a step, shorter than anyone
// notices.
constexpr int kSpins = 1000;

thread_local bool inside_job = false;

// Spins until the value is no longer `old`, then sleeps until it is.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// The one piece of process state: threads do not survive fork(), and only pthread_atfork tells.
std::atomic<std::uint32_t> fork_count{0};

}  // namespace

std::uint32_t current_fork() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::min(cores, control_group_limits().cores.value_or(cores));
}

struct ThreadPool::Crew {
  explicit Crew(int workers) : fork(current_fork()) {
    try {
      for (int i = 0; i < workers; ++i) threads.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      const std::size_t started = threads.size();
      dismiss();
      fail(ErrorKind::runtime, "{} threads could not be started, only {}: {}", workers, started,
           error.what());
    }
  }

  ~Crew() { dismiss(); }

  void dismiss() {
    stop = true;
    announce();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  void announce() {
    jobs.fetch_add(1, std::memory_order_release);
    jobs.notify_all();
  }

  void work() {
    inside_job = true;
    std::uint32_t seen = 0;
    while (true) {
      wait_while(jobs, seen);
      seen = jobs.load(std::memory_order_acquire);
      if (stop) return;
      // Enter, then look whether the job is still open. The owner closes it and then looks whether anyone is
      // inside: one of the two sees the other, so a worker that wakes late never touches a job that has been
      // left.
      inside.fetch_add(1);
      if (open.load()) take_items({});
      if (inside.fetch_sub(1) == 1) inside.notify_one();
    }
  }

  void take_items(PollHook poll) {
    while (true) {
      const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      try {
        (*body)(index);
        poll();
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (index < failed_index) {
          failed_index = index;
          failure = std::current_exception();
        }
        next.store(count, std::memory_order_relaxed);
      }
    }
  }

  void run(std::int64_t items, const IndexFunction& item, PollHook poll) {
    body = &item;
    count = items;
    failed_index = std::numeric_limits<std::int64_t>::max();
    next.store(0, std::memory_order_relaxed);
    open.store(true);
    announce();
    inside_job = true;
    take_items(poll);
    inside_job = false;
    open.store(false);
    for (int left = inside.load(); left != 0; left = inside.load()) wait_while(inside, left);
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  std::uint32_t fork;
  // The job. Written by the owner while it is closed.
  const IndexFunction* body = nullptr;
  std::int64_t count = 0;
  alignas(64) std::atomic<std::int64_t> next{0};
  alignas(64) std::atomic<std::uint32_t> jobs{0};
  std::atomic<bool> open{false};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int> inside{0};
  std::mutex failure_mutex;
  std::int64_t failed_index = 0;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
};

ThreadPool::ThreadPool(int threads) : threads_(threads == 0 ? usable_cores() : threads) {
  check(threads >= 0 && threads <= 4096, "{} threads are not possible; use 1 to 4096, or 0 for every core",
        threads);
  if (threads_ > 1) crew_ = std::make_unique<Crew>(threads_ - 1);
}

ThreadPool::~ThreadPool() {
  if (crew_ && crew_->fork != current_fork()) static_cast<void>(crew_.release());
}

void ThreadPool::run(std::int64_t count, IndexFunction body, PollHook poll) {
  if (crew_ && crew_->fork != current_fork()) {
    // The workers stayed in the parent process; joining or destroying their handles here would be undefined.
    static_cast<void>(crew_.release());
    crew_ = std::make_unique<Crew>(threads_ - 1);
  }
  if (!crew_ || inside_job || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      body(i);
      poll();
    }
    return;
  }
  crew_->run(count, body, poll);
}

void parallel_for(const Stream& stream, std::int64_t count, IndexFunction body) {
  if (stream.pool != nullptr) {
    stream.pool->run(count, body, stream.poll);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    body(i);
    stream.poll();
  }
}

}  // namespace headroom
