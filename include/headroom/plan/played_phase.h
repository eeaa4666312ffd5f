// How long a phase takes: its work and its waits, played in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "headroom/memory/ledger.h"
#include "headroom/memory/work.h"

namespace headroom {

struct PlayedPhase {
  double main_seconds = 0;  // until main is done with its work and its waits for messages
  double copy_seconds = 0;  // of the stream copy

  // Copies go beside main: the longer of the two counts.
  [[nodiscard]] double seconds() const { return std::max(main_seconds, copy_seconds); }
};

// Main and messages between ranks each have a clock. A piece of work moves the clock of its stream by
// seconds_of(record), and who waits for another goes on no earlier than the other had come. Whenever main's
// clock moves, main_moved(stage, seconds) is called with the stage in which it does, where one is given. The
// records are those of the phase; a ledger without the phase takes no time.
[[nodiscard]] PlayedPhase play_phase(const Ledger& ledger, Phase phase, std::span<const WorkRecord> records,
                                     const std::function<double(const WorkRecord&)>& seconds_of,
                                     const std::function<void(std::uint32_t, double)>& main_moved = {});

}  // namespace headroom
