// The device of a run, opened, with what the run may take of its memory and of the host's: the same for
// train, profile and bench step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/device.h"
#include "headroom/plan/plan.h"

namespace headroom {

struct RunDeviceOptions {
  std::string_view device = "cpu";
  int threads = 0;                                  // 0: every core, or a rank's share of them
  std::optional<std::int64_t> budget_bytes{};       // without it: what is free now
  std::optional<std::int64_t> host_budget_bytes{};  // for what is offloaded; without it: what is free now
  int ranks_here = 1;                // that share this machine's cores and what is free of its memory now
  int ranks_on_device = 1;           // that share what is free of a GPU's
  bool ranks_are_processes = false;  // each of which loads kernels of its own
};

struct RunDevice {
  std::unique_ptr<Backend> backend;
  MemoryBudget budget{};
  MemoryBudget host{};  // for what is offloaded; 0 bytes where the device's memory is the host's

  [[nodiscard]] const DeviceDescription& description() const { return backend->description(); }
  // What is free of a memory of the device's own; nothing on a CPU.
  [[nodiscard]] std::optional<std::int64_t> free_bytes() const;
  // The request for a run of the problem here.
  [[nodiscard]] PlanRequest request(const TrainingProblem& problem, const StrategyPins& pins) const;
};
// Opens the backend first and reads what is free afterwards. Throws where there is no such device, and where
// a host budget is given for a device that has no memory of its own.
[[nodiscard]] RunDevice open_run_device(const RunDeviceOptions& options);

// "138.7 GiB of cuda:0 (139.2 GiB free less ...), 96 GiB of the host (...)"
[[nodiscard]] std::string describe_budgets(const RunDevice& device);

// "; --state bf16 would fit" where that is so of a request that does not; otherwise empty.
[[nodiscard]] std::string narrow_state_note(PlanRequest request, const CostModel& costs);

// An error of kind memory with the arithmetic, the largest blocks of the strategy that is least over, and the
// note at its end.
[[noreturn]] void fail_shortfall(const RunDevice& device, const TrainingFit& fit, std::string_view note);

}  // namespace headroom
