// The rates that `headroom bench step --calibrate` measured, in a file of this machine's own.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "headroom/plan.h"

namespace headroom {

// $HEADROOM_RATES, or headroom/rates.json in $XDG_CONFIG_HOME or ~/.config; empty where none of them is set.
[[nodiscard]] std::filesystem::path rates_file();

// What plan, profile, train and bench step choose their strategy by, so that they choose the same.
struct MachineCosts {
  CostModel costs;
  bool measured = false;  // the file had rates of this machine, its threads and the dtype
};
[[nodiscard]] MachineCosts this_machine(const DeviceDescription& device, DType dtype);

// Bytes a second between pinned host memory and a device that has memory of its own.
struct HostLink {
  double to_device = 0;
  double to_host = 0;
};
// Measures copies of so many bytes on the copy stream. No Context may use the backend meanwhile.
[[nodiscard]] HostLink measure_host_link(Backend& backend, std::int64_t bytes = std::int64_t{256} << 20);

// What a dtype's steps took, piece by piece.
struct CalibrationRuns {
  DType dtype;
  std::vector<WorkRecord> records;
};
// Creates the folder of the rates, and refuses what could not be written there: before anything is measured.
void check_can_write_rates();
void write_rates(const std::filesystem::path& file, const DeviceDescription& device,
                 std::span<const CalibrationRuns> runs, const std::optional<HostLink>& link = {});

}  // namespace headroom
