// Which work comes before which, across streams: vector clocks over the records and waits. Allocation and
// free happen on main; work on another stream has to come after the allocation and before the free. That
// holds for every block, so blocks that share an offset are ordered: last work on one, its free, the other's
// allocation, first work.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headroom/core/stream.h"

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
  // False: this stream has not waited for main since the block was allocated.
  [[nodiscard]] bool touch(Stamp& block, StreamId stream);
  std::uint32_t record(StreamId stream);  // its number
  void wait(StreamId waiter, std::uint32_t record);
  // False: main has not waited for the last work on the block.
  [[nodiscard]] bool may_free(const Stamp& block) const;
  // The same of everything: false while another stream still works on something main has not waited for.
  [[nodiscard]] bool joined() const;

 private:
  std::uint32_t tick(StreamId stream);

  std::array<StreamTimes, kStreamCount> known_{};  // known_[s][t]: the moment of t that s comes after
  StreamTimes worked_{};                           // last touch on each stream
  std::vector<StreamTimes> records_;
};

}  // namespace headroom
