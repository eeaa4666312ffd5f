#include "launched_ranks.h"

#include <fmt/format.h>

#include <cstdlib>

#include "headroom/core/error.h"

namespace headroom {

namespace {

constexpr int kKeepWhatIsSet = 0;

// CUDA starts when devices are asked for, so its variables are set before.
std::vector<Device> devices_of_processes(const std::vector<std::string>& names) {
  if (launched_count() > 1) NcclRanks::set_cuda_variables();
  return devices_of_ranks(names);
}

// NCCL takes one rank of a host on a GPU. Ranks that share one are hosts of their own to it, and their
// messages go through sockets: slow, but the same.
void call_ranks_hosts(const LaunchedRank& self) {
  setenv("NCCL_HOSTID", fmt::format("rank{}", self.ranks.rank).c_str(), kKeepWhatIsSet);
}

}  // namespace

LaunchedRanks::LaunchedRanks(const std::vector<std::string>& devices, Seconds timeout)
    : devices_(devices_of_processes(devices)), device_(devices_[0]) {
  if (device_.kind == DeviceKind::cuda && launched_count() > 1) {
    const LaunchedRank self = launched_rank();
    local_rank_ = self.local_rank;
    local_count_ = self.local_count;
    device_ = device_of_rank(devices_, local_rank_);
    if (ranks_on_device(devices_, local_rank_, local_count_) > 1) call_ranks_hosts(self);
    nccl_.emplace(self, device_.index, timeout);
  } else if (MpiRanks::launched()) {
    local_count_ = MpiRanks::on_this_host();
    mpi_.emplace(timeout);
  } else {
    const int started = launched_count();
    check(started == 1,
          "torchrun has started {} processes, which talk to each other on GPUs (--device cuda:0); on CPUs "
          "ranks are threads (--ranks {}) or processes of mpirun",
          started, started);
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
