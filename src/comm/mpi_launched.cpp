#include <algorithm>
#include <cstdlib>

#include "headroom/comm/mpi_ranks.h"

namespace headroom {

bool MpiRanks::launched() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

int MpiRanks::on_this_host() {
  const char* ranks = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return ranks == nullptr ? 1 : std::max(std::atoi(ranks), 1);
}

}  // namespace headroom
