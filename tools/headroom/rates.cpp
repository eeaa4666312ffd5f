#include "rates.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRatesBytes = kMiB;

double rate(const nlohmann::json& kernel, const char* key) {
  const double value = kernel.at(key).get<double>();
  check(value >= 0 && value < 1e18, "{} is {}; a rate is from 0 up", key, value);
  return value;
}

// Puts the file's rates into the model; false where there is no file, or it is of another machine, other
// threads or another dtype.
bool read_rates(const fs::path& file, const DeviceDescription& device, DType dtype, CostModel& costs) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return false;
  try {
    const auto json = nlohmann::json::parse(read_small_file(file, kMaxRatesBytes));
    if (json.at("machine") != device.name || json.at("cores") != device.cores) return false;
    const auto& dtypes = json.at("dtypes");
    const auto kernels = dtypes.find(std::string(name(dtype)));
    if (kernels == dtypes.end()) return false;
    for (const auto& [kernel, fitted] : kernels->items()) {
      costs.set(kernel, {.flops_per_second = rate(fitted, "flops_per_second"),
                         .bytes_per_second = rate(fitted, "bytes_per_second"),
                         .start_seconds = rate(fitted, "start_seconds")});
    }
    return true;
  } catch (const std::exception& error) {
    fail(ErrorKind::input, "{} holds no rates ({}); headroom bench step --calibrate writes them anew",
         file.string(), error.what());
  }
}

}  // namespace

fs::path rates_file() {
  if (const char* file = std::getenv("HEADROOM_RATES"); file != nullptr && *file != '\0') return file;
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config != '\0')
    return fs::path(config) / "headroom" / "rates.json";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return fs::path(home) / ".config" / "headroom" / "rates.json";
}

void write_rates(const fs::path& file, const DeviceDescription& device,
                 std::span<const CalibrationRuns> runs) {
  check(!file.empty(), "neither HOME, XDG_CONFIG_HOME nor HEADROOM_RATES says where rates are kept");
  nlohmann::ordered_json json = {{"machine", device.name}, {"cores", device.cores}};
  for (const CalibrationRuns& run : runs) {
    CostModel costs(device, run.dtype);
    calibrate(costs, run.records);
    for (const auto& [kernel, fitted] : costs.kernels()) {
      json["dtypes"][std::string(name(run.dtype))][kernel] = {{"flops_per_second", fitted.flops_per_second},
                                                              {"bytes_per_second", fitted.bytes_per_second},
                                                              {"start_seconds", fitted.start_seconds}};
    }
  }
  if (file.has_parent_path()) fs::create_directories(file.parent_path());
  write_file(file, json.dump(2) + "\n");
}

MachineCosts this_machine(const DeviceDescription& device, DType dtype) {
  MachineCosts machine{.costs = CostModel(device, dtype)};
  machine.measured = read_rates(rates_file(), device, dtype, machine.costs);
  return machine;
}

}  // namespace headroom
