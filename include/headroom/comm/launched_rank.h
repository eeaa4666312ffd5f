// A rank as whoever started the process describes it in the environment: torchrun, mpirun or a script.
#pragma once

#include <string>

#include "headroom/memory/communicator.h"

namespace headroom {

struct LaunchedRank {
  Ranks ranks;
  int local_rank = 0;   // among the ranks of its host
  int local_count = 1;  // of them
  std::string address;  // of rank 0, a name or an IPv4 address
  int port = 0;         // where rank 0 listens
};

// Whether the environment describes a rank.
[[nodiscard]] bool rank_is_launched();
// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or without RANK what
// mpirun sets. Throws an error of kind input that names the variable which is missing or wrong. Where
// torchrun itself listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), the port is the next one. Under
// mpirun the address is needed only for several hosts, and the port is 29500 unless MASTER_PORT is set.
[[nodiscard]] LaunchedRank launched_rank();
// How many ranks the environment describes: WORLD_SIZE beside RANK, or what mpirun sets; 1 without both.
[[nodiscard]] int launched_count();

}  // namespace headroom
