// The rates that `headroom bench step --calibrate` measured, in a file of this machine's own.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "headroom/plan.h"

namespace headroom {

// $HEADROOM_RATES, or headroom/rates.json in $XDG_CONFIG_HOME or ~/.config.
[[nodiscard]] std::filesystem::path rates_file();

// What a dtype's steps took, piece by piece.
struct CalibrationRuns {
  DType dtype;
  std::vector<WorkRecord> records;
};
void write_rates(const std::filesystem::path& file, const DeviceDescription& device,
                 std::span<const CalibrationRuns> runs);

// Puts the file's rates into the model; false where there is no file, or it is of another machine, other
// threads or another dtype.
[[nodiscard]] bool read_rates(const std::filesystem::path& file, const DeviceDescription& device, DType dtype,
                              CostModel& costs);

}  // namespace headroom
