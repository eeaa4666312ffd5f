#include "headroom/jobs/run_device.h"

#include <algorithm>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

std::string in_parentheses(const std::string& arithmetic) {
  return arithmetic.empty() ? arithmetic : fmt::format(" ({})", arithmetic);
}

// A rank's share of what is free. Bytes that somebody named are for each rank.
MemoryBudget share(MemoryBudget free, int ranks) {
  if (ranks == 1 || free.arithmetic.empty()) return free;
  return {.bytes = free.bytes / ranks,
          .arithmetic = fmt::format("{}, shared by {} ranks", free.arithmetic, ranks)};
}

}  // namespace

RunDevice open_run_device(const RunDeviceOptions& options) {
  const Device which = parse_device(options.device);
  const bool shares_cores = which.kind == DeviceKind::cpu && options.threads == 0 && options.ranks_here > 1;
  const int threads = shares_cores ? std::max(usable_cores() / options.ranks_here, 1) : options.threads;
  RunDevice device{.backend = open_backend(which, threads)};
  check(which.kind != DeviceKind::cpu || !options.host_budget_bytes,
        "--host-budget means nothing on {}, whose memory is the host's", to_string(which));
  const bool own_memory = which.kind != DeviceKind::cpu;
  const int sharing = own_memory ? options.ranks_on_device : options.ranks_here;
  const int processes = own_memory && options.ranks_are_processes ? sharing : 1;
  device.budget = share(device_budget(find_device(which), options.budget_bytes, processes), sharing);
  if (own_memory) {
    device.host = share(host_budget(host_memory(), options.host_budget_bytes), options.ranks_here);
  }
  return device;
}

std::optional<std::int64_t> RunDevice::free_bytes() const {
  if (backend->device().kind == DeviceKind::cpu) return std::nullopt;
  return find_device(backend->device()).memory.free_bytes;
}

PlanRequest RunDevice::request(const TrainingProblem& problem, const StrategyPins& pins) const {
  return {.problem = problem,
          .device = description(),
          .budget_bytes = budget.bytes,
          .host_budget_bytes = host.bytes,
          .pins = pins};
}

std::string describe_budgets(const RunDevice& device) {
  return fmt::format("{} of {}{}, {} of the host{}", format_bytes(device.budget.bytes),
                     to_string(device.backend->device()), in_parentheses(device.budget.arithmetic),
                     format_bytes(device.host.bytes), in_parentheses(device.host.arithmetic));
}

std::string narrow_state_note(PlanRequest request, const CostModel& costs) {
  if (request.problem.state != StatePrecision::f32 || request.problem.compute_dtype != DType::bf16) return {};
  request.problem.state = StatePrecision::bf16;
  return fit_training(request, costs).fits ? "; --state bf16 would fit" : "";
}

void fail_shortfall(const RunDevice& device, const TrainingFit& fit, std::string_view note) {
  std::string items;
  const std::vector<LiveBlock> blocks = blocks_at_peak(fit.layout.rehearsal, Space::device);
  for (std::size_t i = 0; i < std::min<std::size_t>(blocks.size(), 3); ++i) {
    items += fmt::format("{}{} {}", i == 0 ? "" : ", ", blocks[i].name, format_bytes(blocks[i].bytes));
  }
  const bool own_memory = device.backend->device().kind != DeviceKind::cpu;
  fail(ErrorKind::memory,
       "does not fit: the budget is {} bytes{} and the smallest that would work is {}{}; its largest items: "
       "{}{}",
       format_count(device.budget.bytes), own_memory ? in_parentheses(device.budget.arithmetic) : "",
       format_count(fit.needed_bytes),
       own_memory
           ? fmt::format(", with {} bytes of the host's {}{}", format_count(fit.layout.reserved(Space::host)),
                         format_count(device.host.bytes), in_parentheses(device.host.arithmetic))
           : "",
       items, note);
}

}  // namespace headroom
