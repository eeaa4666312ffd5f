// Ranks that are processes with a GPU each, on one host or several. Messages in a GPU's memory move over
// NCCL. Beside it the ranks have TCP connections, over which they compare the sizes of messages and end each
// other, and which carry numbers on the host.
#pragma once

#include <memory>
#include <string>

#include "headroom/comm/launched_rank.h"

namespace headroom {

class NcclRanks {
 public:
  // Returns why ranks over NCCL are not possible here, or nothing where they are.
  [[nodiscard]] static std::string missing();

  // Sets CUDA_MODULE_LOADING and CUDA_DEVICE_MAX_CONNECTIONS for ranks over NCCL, unless they are set
  // already. Has to be called before anything in the process uses CUDA, which reads them when it starts, and
  // before the process has other threads. Without it ranks may deadlock.
  static void set_cuda_variables();

  // Connects this process, whose GPU is `gpu`, with all others. Throws where NCCL is missing, or where
  // another rank does not connect within the timeout. No two ranks of what NCCL takes for a host
  // (NCCL_HOSTID) may have the same GPU.
  NcclRanks(const LaunchedRank& self, int gpu, Seconds timeout = kDefaultTimeout);
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;
  // Waits for every rank to come here, at most for the timeout.
  ~NcclRanks();

  // Returns the communicator of this process. One thread at a time may use it.
  [[nodiscard]] Communicator& communicator();

 private:
  class Member;
  std::unique_ptr<Member> member_;
};

}  // namespace headroom
