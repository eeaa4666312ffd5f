// Ranks that are threads of one process. Each has a communicator; what they exchange they read from each
// other's memory.
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

  // One thread at a time uses it. It must not outlive this.
  [[nodiscard]] Communicator& communicator(int rank);

 private:
  struct Group;
  std::unique_ptr<Group> group_;
};

}  // namespace headroom
