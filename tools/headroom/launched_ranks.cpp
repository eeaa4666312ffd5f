#include "launched_ranks.h"

namespace headroom {

LaunchedRanks::LaunchedRanks(const std::vector<Device>& devices) : device_(devices[0]) {
  if (devices[0].kind == DeviceKind::cuda && rank_is_launched()) {
    const LaunchedRank self = launched_rank();
    device_ = device_of_rank(devices, self.local_rank);
    nccl_.emplace(self, device_.index);
  } else if (MpiRanks::launched()) {
    mpi_.emplace();
  }
}

Communicator* LaunchedRanks::communicator() {
  return nccl_ ? &nccl_->communicator() : mpi_ ? &mpi_->communicator() : nullptr;
}

std::string_view LaunchedRanks::transport() const {
  return nccl_ ? "nccl" : mpi_ ? "mpi" : "threads";
}

void LaunchedRanks::finish() {
  if (Communicator* ranks = communicator(); ranks != nullptr) ranks->barrier();
}

}  // namespace headroom
