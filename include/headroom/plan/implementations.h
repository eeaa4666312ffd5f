// Which implementations a step runs for attention, the loss and products, and why not faster ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/kernel_family.h"
#include "headroom/train/rehearsal.h"

namespace headroom {

struct StepImplementation {
  std::string_view family;             // "attention", "loss" or "products"
  std::vector<std::string_view> rows;  // those that run, by name; several where layers differ
  std::vector<Refusal> refusals;       // of rows for this kind of device that the table has before them
};
// The rows are those of a rehearsal, which are those of the run.
[[nodiscard]] std::vector<StepImplementation> step_implementations(const TrainingProblem& problem,
                                                                   const Strategy& strategy,
                                                                   const DeviceDescription& device);

// "sm90, the fastest there is", or "portable; not sm90: needs compute capability 9.0, this is 8.6"
[[nodiscard]] std::string describe(const StepImplementation& implementation);

// As nlohmann's JSON classes find it: {"family", "rows", "refusals": [{"row", "reason"}]}.
template <class Json>
void to_json(Json& json, const StepImplementation& implementation) {
  json = Json{{"family", implementation.family}, {"rows", implementation.rows}, {"refusals", Json::array()}};
  for (const Refusal& refusal : implementation.refusals)
    json["refusals"].push_back({{"row", refusal.implementation}, {"reason", refusal.reason}});
}

}  // namespace headroom
