// Ranks that are threads of one process. Each has a communicator, and reads what the others give from their
// memory.
#pragma once

#include <memory>

#include "headroom/memory/communicator.h"

namespace headroom {

class ThreadRanks {
 public:
  explicit ThreadRanks(int count);
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
