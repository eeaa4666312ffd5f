// Ranks that are threads of one process. A message is one copy from the sender's memory into the receiver's;
// it is made in pieces by whichever of the two ranks calls its communicator first.
#pragma once

#include <memory>

#include "headroom/comm/link_model.h"

namespace headroom {

class ThreadRanks {
 public:
  // The link is for measurements of overlap: nothing is copied and no core is busy while a message is late.
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
