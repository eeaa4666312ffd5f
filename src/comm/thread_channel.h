// Messages between two threads: the two sides of a message meet in a channel, and either copies it, or lets a
// GPU copy it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/cuda/messages.h"
#include "headroom/memory/communicator.h"

namespace headroom {

// One message, from when its first side is posted until both sides have seen that it is there. One between
// GPUs is there for the host when its copy was given to a stream.
struct ThreadMessage {
  using Clock = std::chrono::steady_clock;

  std::span<const std::byte> source;
  std::span<std::byte> target;
  StepLabel send_step;
  StepLabel receive_step;
  bool source_on_gpu = false;
  bool target_on_gpu = false;
  cuda::Moment source_ready;  // of GPUs: the source is written, the target is free, the copy is done
  cuda::Moment target_ready;
  cuda::Moment done;
  Clock::time_point visible;  // before that the link has not delivered it
  int sides_done = 0;
  std::atomic<bool> matched{false};      // both sides are posted
  std::atomic<std::int64_t> claimed{0};  // bytes that a rank copies or has copied
  std::atomic<std::int64_t> copied{0};   // bytes that are there

  [[nodiscard]] std::int64_t bytes() const { return std::ssize(source); }
  // Bytes that are not there yet. As long as the message is not there it counts as one more.
  [[nodiscard]] std::int64_t left(Clock::time_point now) const {
    if (!matched.load(std::memory_order_acquire)) return 1;
    const std::int64_t missing = bytes() - copied.load(std::memory_order_acquire);
    return missing > 0 || now < visible ? missing + 1 : 0;
  }
};

// Messages from one rank to another. The n-th send meets the n-th receive. The lock is held while a side is
// posted, never while bytes are copied. Transfers are used again, so that messages allocate nothing once as
// many have been under way.
class Channel {
 public:
  enum class Side : std::uint8_t { send, receive };

  struct Posted {
    ThreadMessage* transfer = nullptr;
    bool met = false;  // the other side was there
  };
  // fill(transfer) writes down this side of the message.
  template <class Fill>
  Posted post(Side side, const Fill& fill) {
    const std::lock_guard lock(mutex_);
    const bool meets = !unmatched_.empty() && unmatched_side_ != side;
    ThreadMessage& transfer = meets ? *unmatched_.front() : take();
    fill(transfer);
    if (meets) {
      unmatched_.erase(unmatched_.begin());
      transfer.matched.store(true, std::memory_order_release);
    } else {
      unmatched_side_ = side;
      unmatched_.push_back(&transfer);
    }
    return {&transfer, meets};
  }
  void leave(ThreadMessage& transfer) {
    const std::lock_guard lock(mutex_);
    if (++transfer.sides_done == 2) unused_.push_back(&transfer);
  }

 private:
  ThreadMessage& take() {
    if (unused_.empty()) {
      transfers_.push_back(std::make_unique<ThreadMessage>());
      unused_.push_back(transfers_.back().get());
    }
    ThreadMessage& transfer = *unused_.back();
    unused_.pop_back();
    transfer.sides_done = 0;
    transfer.matched.store(false, std::memory_order_relaxed);
    transfer.claimed.store(0, std::memory_order_relaxed);
    transfer.copied.store(0, std::memory_order_relaxed);
    return transfer;
  }

  std::mutex mutex_;
  std::vector<ThreadMessage*> unmatched_;  // with one side; all of them with the same one
  Side unmatched_side_ = Side::send;
  std::vector<std::unique_ptr<ThreadMessage>> transfers_;
  std::vector<ThreadMessage*> unused_;
};

// What a rank sleeps on. It is rung when a message of the rank has met its other side or has arrived, and
// when the ranks end.
class Bell {
 public:
  [[nodiscard]] std::uint64_t rings() {
    const std::lock_guard lock(mutex_);
    return rings_;
  }
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      ++rings_;
    }
    rung_.notify_one();
  }
  // Returns when the bell was rung since it had been rung `seen` times, or at the deadline.
  void wait(std::uint64_t seen, std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    rung_.wait_until(lock, deadline, [&] { return rings_ != seen; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  std::uint64_t rings_ = 0;
};

}  // namespace headroom
