// This process as one rank of several, for commands whose ranks may also be threads: over NCCL where the
// devices are GPUs and torchrun or mpirun has started it, over MPI where mpirun has and they are CPUs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/comm.h"
#include "headroom/device.h"

namespace headroom {

class LaunchedRanks {
 public:
  // The devices, by name, are those that the ranks of a host take in turn. To be made before anything else
  // uses CUDA. Returns when all ranks are connected.
  explicit LaunchedRanks(const std::vector<std::string>& devices, Seconds timeout = kDefaultTimeout);

  // Of this process; none where the ranks are threads of it.
  [[nodiscard]] Communicator* communicator();
  [[nodiscard]] Ranks ranks() { return communicator() == nullptr ? Ranks{} : communicator()->ranks(); }
  [[nodiscard]] std::string_view transport() const;
  // This process among those of its host; alone where the ranks are threads of it.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_count() const { return local_count_; }
  [[nodiscard]] const std::vector<Device>& devices() const { return devices_; }
  // The device of this process, or the first of them.
  [[nodiscard]] Device device() const { return device_; }
  // Waits for all ranks. A rank that fails after its last message would otherwise go unnoticed.
  void finish();

 private:
  std::optional<MpiRanks> mpi_;
  std::optional<NcclRanks> nccl_;
  std::vector<Device> devices_;
  Device device_;
  int local_rank_ = 0;
  int local_count_ = 1;
};

}  // namespace headroom
