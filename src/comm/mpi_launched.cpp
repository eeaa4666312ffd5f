#include <cstdlib>

#include "headroom/comm/mpi_ranks.h"

namespace headroom {

bool MpiRanks::launched() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

}  // namespace headroom
