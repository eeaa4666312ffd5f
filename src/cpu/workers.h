// Work items taken in rising order by workers that each own a slot of scratch. parallel_for does not say
// which thread runs an item, so one item per thread is started and each takes work from a counter; the item's
// index is its slot.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "headroom/cpu/thread_pool.h"

namespace headroom::cpu {

// Who works on an item: its slot < threads is nobody else's meanwhile; the thread that called may poll.
struct Worker {
  std::int64_t slot;
  bool calling;
  const Stream& stream;

  void poll() const {
    if (calling) stream.poll();
  }
};

// body(item, worker) for every item, taken in rising order.
template <class Body>
void for_each_in_order(const Stream& stream, int threads, std::int64_t count, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(stream, std::min<std::int64_t>(threads, count), [&](std::int64_t slot) {
    const Worker worker{slot, std::this_thread::get_id() == caller, stream};
    for (std::int64_t item = next.fetch_add(1); item < count; item = next.fetch_add(1)) {
      body(item, worker);
      worker.poll();
    }
  });
}

}  // namespace headroom::cpu
