// The conformance cases over MPI: mpirun -n 3 test_mpi. With the name of a fault (or Hang, Dies) it does that
// instead, prints the error as the program does, and returns 1.
#include "headroom/comm/mpi_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "comm/conformance.h"

namespace headroom {
namespace {

Communicator* communicator = nullptr;

class MpiConformance : public testing::Test {
 public:
  explicit MpiConformance(ConformanceCase one) : case_(std::move(one)) {}
  void TestBody() override { case_.run({*communicator}); }

 private:
  ConformanceCase case_;
};

// Rank 1 stops, or is killed, in ring step 3. The others wait for it.
void lose_rank(int signal) {
  // mpirun tells the others to end as soon as one has died. As in training, that is not the end at once.
  std::signal(SIGTERM, SIG_IGN);
  MpiRanks ranks(Seconds(2));
  const auto [rank, count] = ranks.communicator().ranks();
  for (int step = 0; step < 5; ++step) {
    std::array<std::byte, 100'000> here{};
    std::array<std::byte, 100'000> there{};
    const std::array sends = {Send{(rank + 1) % count, here}};
    const std::array receives = {Receive{(rank + count - 1) % count, there}};
    if (rank == 1 && step == 3) static_cast<void>(std::raise(signal));
    ranks.communicator().wait(ranks.communicator().start(sends, receives, {"ring step", step}, {}));
  }
}

void fail_as(std::string_view fault) {
  if (fault == "Hang") lose_rank(SIGSTOP);
  if (fault == "Dies") lose_rank(SIGKILL);
  for (const FaultCase& one : fault_cases()) {
    if (one.name != fault) continue;
    MpiRanks ranks(Seconds(10));
    one.run({ranks.communicator()});
  }
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  testing::InitGoogleTest(&argc, argv);
  try {
    if (argc > 1) {
      fail_as(argv[1]);
      return 0;
    }
    MpiRanks ranks(Seconds(20));
    communicator = &ranks.communicator();
    for (const ConformanceCase& one : conformance_cases()) {
      testing::RegisterTest("MpiConformance", std::string(one.name).c_str(), nullptr, nullptr, __FILE__,
                            __LINE__, [=]() -> testing::Test* { return new MpiConformance(one); });
    }
    return RUN_ALL_TESTS();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
