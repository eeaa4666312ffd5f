// Stands in for the transport over MPI in builds without it.
#include "headroom/comm/mpi_ranks.h"
#include "headroom/core/error.h"

namespace headroom {

class MpiRanks::Member {};

bool MpiRanks::available() {
  return false;
}

MpiRanks::MpiRanks(Seconds) {
  fail(ErrorKind::input,
       "this build has no MPI; install libopenmpi-dev and openmpi-bin, then configure and build again");
}

MpiRanks::~MpiRanks() = default;

Communicator& MpiRanks::communicator() {
  fail(ErrorKind::input, "this build has no MPI");
}

}  // namespace headroom
