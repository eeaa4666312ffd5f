// Which work comes before which, across streams and the host: vector clocks over records and waits.
// Allocation and free happen on main; work on another stream has to come after the allocation and before the
// free. Host memory is also the host's own: it is free when the host knows that all work on it is done. That
// holds for every block, so blocks that share an offset are ordered: last work on one, its free, the other's
// allocation, first work.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headroom/core/stream.h"
#include "headroom/memory/ledger.h"

namespace headroom {

using StreamTimes =
    std::array<std::uint32_t, kStreamCount>;  // a moment on each stream; 0 is before everything

class StreamOrder {
 public:
  // What a block remembers.
  struct Stamp {
    std::uint32_t allocated = 0;  // on main
    StreamTimes touched{};        // last work on each stream
  };

  void reset();
  [[nodiscard]] Stamp allocate() { return {.allocated = tick(StreamId::main), .touched = {}}; }
  // Returns false where this stream has not waited for main since the block was allocated.
  [[nodiscard]] bool touch(Stamp& block, StreamId stream);
  std::uint32_t record(StreamId stream);                     // its number
  void record_again(std::uint32_t record, StreamId stream);  // a later moment takes the number
  [[nodiscard]] std::uint32_t records() const { return static_cast<std::uint32_t>(records_.size()); }
  [[nodiscard]] StreamId stream_of(std::uint32_t record) const { return records_[record].stream; }
  void wait(StreamId waiter, std::uint32_t record);
  void wait_on_host(std::uint32_t record);
  // Returns false where main has not waited for the last work on the block.
  [[nodiscard]] bool known_to_main(const Stamp& block) const;
  // Returns false where the host has not waited for the last work on the block.
  [[nodiscard]] bool known_to_host(const Stamp& block) const;
  // A block of device memory is freed on main, one of host memory by the host.
  [[nodiscard]] bool may_free(const Stamp& block, Space space) const {
    return space == Space::host ? known_to_host(block) : known_to_main(block);
  }
  // Returns false where another stream may still do work that main has not waited for.
  [[nodiscard]] bool joined() const;

 private:
  std::uint32_t tick(StreamId stream);

  std::array<StreamTimes, kStreamCount> known_{};  // known_[s][t]: the moment of t that s comes after
  StreamTimes known_to_host_{};
  StreamTimes worked_{};  // last touch on each stream
  struct Record {
    StreamId stream = StreamId::main;
    StreamTimes known;
  };
  std::vector<Record> records_;
};

}  // namespace headroom
