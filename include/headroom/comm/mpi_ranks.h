// Ranks that are processes, on one host or several, started by mpirun. Messages move while a rank calls its
// communicator, so kernels have to poll.
#pragma once

#include <memory>

#include "headroom/memory/communicator.h"

namespace headroom {

class MpiRanks {
 public:
  // Whether this build has MPI.
  [[nodiscard]] static bool available();
  // Whether mpirun has started this process.
  [[nodiscard]] static bool launched();
  // How many processes mpirun has started on this host, this one included.
  [[nodiscard]] static int on_this_host();

  // Starts MPI. A process can do that once. Throws where this build has no MPI.
  explicit MpiRanks(Seconds timeout = kDefaultTimeout);
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;
  // Waits for every rank to come here, and ends MPI. After an abort it leaves MPI as it is, and mpirun ends
  // what is left of the ranks when this process returns an error.
  ~MpiRanks();

  // Returns the communicator of this process. Only the thread that made this object may use it.
  [[nodiscard]] Communicator& communicator();

 private:
  class Member;
  std::unique_ptr<Member> member_;
};

}  // namespace headroom
