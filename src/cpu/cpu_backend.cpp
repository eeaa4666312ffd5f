#include "headroom/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "cpu/fork.h"
#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/core/memory_status.h"

namespace headroom {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kHugePage = 2 * kMiB;

[[noreturn]] void fail_reserve(std::int64_t bytes, int code) {
  fail(ErrorKind::memory, "could not reserve {} ({} bytes): {}", format_bytes(bytes), format_count(bytes),
       std::strerror(code));
}

// Every page is made present now, so that a step cannot be the one that finds out there is no memory.
void make_present(void* data, std::int64_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  if (madvise(data, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) fail_reserve(bytes, errno);
#endif
  volatile auto* page = static_cast<volatile std::uint8_t*>(data);  // kernels before 5.14
  for (std::int64_t i = 0; i < bytes; i += kPage) page[i] = 0;
}

}  // namespace

// Tasks wait in a ring of fixed size: a submitter that is a whole ring ahead waits for the thread.
class CpuBackend::SideStream {
 public:
  SideStream() : fork_(current_fork()), thread_([this](const std::stop_token& stop) { work(stop); }) {}

  std::uint64_t submit(const Task& task, const Stream& stream) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_ - done_ < kRing; });
    ring_[submitted_ % kRing] = {task, stream};
    ++submitted_;
    changed_.notify_all();
    return submitted_;
  }

  [[nodiscard]] std::uint32_t fork() const { return fork_; }

  [[nodiscard]] std::uint64_t submitted() {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }

  // Until that many tasks are done; throws what one of them threw.
  void wait(std::uint64_t tasks) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= tasks; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  static constexpr std::size_t kRing = 64;
  struct Entry {
    Task task;
    Stream stream;
  };

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return done_ < submitted_; })) {
      const Entry& entry = ring_[done_ % kRing];
      lock.unlock();
      std::exception_ptr failure;
      try {
        entry.task(entry.stream);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !failure_) failure_ = failure;
      ++done_;
      changed_.notify_all();
    }
  }

  std::uint32_t fork_;  // the thread stays behind in the parent of a fork
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Entry, kRing> ring_;
  std::uint64_t submitted_ = 0;
  std::uint64_t done_ = 0;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: stops and joins first
};

CpuBackend::CpuBackend(int threads) : description_(describe_cpu()), pool_(threads) {
  description_.cores = pool_.threads();
}

CpuBackend::~CpuBackend() {
  for (std::unique_ptr<SideStream>& side : sides_) leave_to_parent(side);
}

void CpuBackend::leave_to_parent(std::unique_ptr<SideStream>& side) {
  if (side && side->fork() != current_fork()) static_cast<void>(side.release());
}

void* CpuBackend::reserve_memory(Space, std::int64_t bytes) {
  check_free(host_memory(), bytes, "cpu");
  // Address space for one huge page more, so that the arena can start on one; what sticks out goes back.
  const std::int64_t mapped = round_up(checked_add(bytes, kHugePage), kPage);
  void* mapping = mmap(nullptr, static_cast<std::size_t>(mapped), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) fail_reserve(bytes, errno);
  auto* base = static_cast<std::byte*>(mapping);
  const auto past_huge_page = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base) % kHugePage);
  const std::int64_t before = past_huge_page == 0 ? 0 : kHugePage - past_huge_page;
  const std::int64_t kept = round_up(bytes, kPage);
  std::byte* data = base + before;
  if (before > 0) munmap(base, static_cast<std::size_t>(before));
  if (before + kept < mapped) munmap(data + kept, static_cast<std::size_t>(mapped - before - kept));
  // Fewer TLB misses in every kernel, and 512 times fewer faults here; refused is fine.
  if (bytes >= kHugePage) madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  try {
    make_present(data, bytes);
  } catch (...) {
    munmap(data, static_cast<std::size_t>(kept));
    throw;
  }
  return data;
}

void CpuBackend::release_memory(Space, void* data, std::int64_t bytes) noexcept {
  munmap(data, static_cast<std::size_t>(divide_up(bytes, kPage) * kPage));
}

Stream CpuBackend::stream(StreamId id) {
  const bool main = id == StreamId::main;
  return {.device = &description_,
          .pool = main ? &pool_ : nullptr,
          .poll = main ? poll_ : PollHook{},
          .native = nullptr};
}

CpuBackend::SideStream& CpuBackend::side(StreamId id) {
  std::unique_ptr<SideStream>& side = sides_[static_cast<std::size_t>(id)];
  leave_to_parent(side);
  if (!side) side = std::make_unique<SideStream>();
  return *side;
}

void CpuBackend::submit(StreamId id, const Task& task) {
  if (id == StreamId::main) {
    task(stream(id));
  } else {
    side(id).submit(task, stream(id));
  }
}

void CpuBackend::copy(StreamId id, void* to, const void* from, std::int64_t bytes) {
  submit(id, Task([=](const Stream&) { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }));
}

void CpuBackend::fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) {
  submit(id, Task([=](const Stream&) { std::memset(data, value, static_cast<std::size_t>(bytes)); }));
}

void CpuBackend::record(StreamId id, std::uint32_t number) {
  if (records_.size() <= number) records_.resize(number + std::size_t{1});
  std::unique_ptr<SideStream>& side = sides_[static_cast<std::size_t>(id)];
  leave_to_parent(side);
  records_[number] = {id, side ? side->submitted() : 0};
}

void CpuBackend::wait(StreamId waiter, std::uint32_t number) {
  const Record record = records_.at(number);
  // Main has done its work when it returns, and a stream is in order with itself.
  if (record.tasks == 0 || record.stream == waiter) return;
  SideStream* awaited = &side(record.stream);
  if (waiter == StreamId::main) {
    awaited->wait(record.tasks);
  } else {
    submit(waiter, Task([=](const Stream&) { awaited->wait(record.tasks); }));
  }
}

// The host is the thread that main runs on.
void CpuBackend::wait_on_host(std::uint32_t number) {
  wait(StreamId::main, number);
}

void CpuBackend::synchronize() {
  std::exception_ptr first_failure;
  for (std::unique_ptr<SideStream>& side : sides_) {
    leave_to_parent(side);
    if (!side) continue;
    try {
      side->wait(side->submitted());
    } catch (...) {
      if (!first_failure) first_failure = std::current_exception();
    }
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace headroom
