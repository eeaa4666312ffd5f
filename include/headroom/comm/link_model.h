// A connection between ranks, in numbers: for messages that are delivered late on purpose, and for estimates
// of time.
#pragma once

#include <limits>

#include "headroom/memory/communicator.h"

namespace headroom {

// A rank's messages leave one after another at this rate and are there after the latency.
struct LinkModel {
  Seconds latency{0};
  double bytes_per_second = std::numeric_limits<double>::infinity();

  bool operator==(const LinkModel&) const = default;
};

}  // namespace headroom
