// What every transport has to do, as functions that each rank calls with its communicator. The data are small
// integers, which sums of any type and order hold exactly, so that results are compared bit for bit.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/memory.h"

namespace headroom {

// A rank, and the device in whose memory its messages are. Without one they are in ordinary memory.
struct RankUnderTest {
  Communicator& communicator;
  Backend* backend = nullptr;
};

struct ConformanceCase {
  std::string_view name;
  std::function<void(const RankUnderTest&)> run;
};

// Cases in which every rank does what it should; the communicator can be used after each.
[[nodiscard]] std::vector<ConformanceCase> conformance_cases();

// Cases that end every rank with an error that has this text. They need two ranks or more.
struct FaultCase {
  std::string_view name;
  std::string text;
  std::function<void(const RankUnderTest&)> run;
};
[[nodiscard]] std::vector<FaultCase> fault_cases();

}  // namespace headroom
