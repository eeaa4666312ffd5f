// Ranks that are threads of one process. A message is one copy from the sender's memory into the receiver's;
// it is made in pieces by whichever of the two ranks calls its communicator first.
#pragma once

#include <limits>
#include <memory>

#include "headroom/memory/communicator.h"

namespace headroom {

// A connection that is slower than memory, for measurements of overlap. A rank's messages leave one after
// another at this rate and are there after the latency. Nothing is copied and no core is busy meanwhile.
struct LinkModel {
  Seconds latency{0};
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

class ThreadRanks {
 public:
  explicit ThreadRanks(int count, Seconds timeout = kDefaultTimeout, const LinkModel& link = {});
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;
  ~ThreadRanks();

  // Returns the communicator of a rank, 0 to count - 1. One thread at a time may use it, and it must not
  // outlive this object.
  [[nodiscard]] Communicator& communicator(int rank);

 private:
  struct Group;
  std::unique_ptr<Group> group_;
};

}  // namespace headroom
