// The conformance cases over NCCL, as one of the processes that tests/comm/run_ranks.sh starts. With the name
// of a fault (or Hang, Dies) it does that instead, prints the error as the program does, and returns 1. It
// returns 77 where there is no GPU or no NCCL.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>

#include "comm/conformance.h"
#include "cuda/cuda_backend.h"
#include "headroom/comm/nccl_ranks.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

constexpr int kSkipped = 77;

// Rank 1 stops, or is killed, in ring step 3. The others wait for it.
void lose_rank(const RankUnderTest& under_test, int signal) {
  constexpr std::int64_t kBytes = 100'000;
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  auto* memory = static_cast<std::byte*>(under_test.backend->reserve(Space::device, 2 * kBytes));
  for (int step = 0; step < 5; ++step) {
    const std::array sends = {Send{(rank + 1) % count, {memory, kBytes}}};
    const std::array receives = {Receive{(rank + count - 1) % count, {memory + kBytes, kBytes}}};
    if (rank == 1 && step == 3) static_cast<void>(std::raise(signal));
    communicator.wait(
        communicator.start(sends, receives, {"ring step", step}, under_test.backend->stream(StreamId::main)));
  }
}

void fail_as(const RankUnderTest& under_test, std::string_view fault) {
  if (fault == "Hang") lose_rank(under_test, SIGSTOP);
  if (fault == "Dies") lose_rank(under_test, SIGKILL);
  for (const FaultCase& one : fault_cases()) {
    if (one.name == fault) one.run(under_test);
  }
}

int run(int argc, char** argv) {
  if (const CudaCount count = cuda_device_count(); count.devices == 0) {
    fmt::print("skipped: no GPU: {}\n", count.reason);
    return kSkipped;
  }
  if (const std::string missing = NcclRanks::missing(); !missing.empty()) {
    fmt::print("skipped: {}\n", missing);
    return kSkipped;
  }
  const LaunchedRank self = launched_rank();
  const int gpu = self.local_rank % cuda_device_count().devices;
  CudaBackend backend(gpu);
  NcclRanks ranks(self, gpu, Seconds(argc > 1 ? 5 : 60));
  const RankUnderTest under_test{ranks.communicator(), &backend};
  if (argc > 1) {
    fail_as(under_test, argv[1]);
    return 0;
  }
  for (const ConformanceCase& one : conformance_cases()) {
    SCOPED_TRACE(one.name);
    one.run(under_test);
  }
  fmt::print("rank {} of {}: {}\n", self.ranks.rank, self.ranks.count,
             testing::Test::HasFailure() ? "failed" : "passed");
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  headroom::NcclRanks::set_cuda_variables();
  try {
    return headroom::run(argc, argv);
  } catch (const headroom::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
