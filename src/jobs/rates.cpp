#include "headroom/jobs/rates.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/core/text.h"
#include "headroom/core/timing.h"
#include "headroom/memory/arena.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRatesBytes = kMiB;

using Json = nlohmann::json;

[[noreturn]] void refuse(const fs::path& file, std::string_view reason) {
  fail(ErrorKind::input, "{} holds no rates: {}; headroom bench step --calibrate writes them anew",
       file.string(), reason);
}

// The value of a key, of the kind that `is` checks.
const Json& member(const fs::path& file, const Json& object, std::string_view key,
                   bool (Json::*is)() const noexcept, std::string_view kind) {
  const auto found = object.find(key);
  if (found == object.end() || !((*found).*is)()) refuse(file, fmt::format("'{}' is not {}", key, kind));
  return *found;
}

double number(const fs::path& file, const Json& kernel, std::string_view key) {
  return member(file, kernel, key, &Json::is_number, "a number").get<double>();
}

// Times have to stay finite: differences of infinite ones cannot be compared.
double rate(const fs::path& file, const Json& kernel, std::string_view key) {
  const double value = number(file, kernel, key);
  if (value != 0 && !(value >= 1 && value < 1e18)) {
    refuse(file, fmt::format("'{}' is {}; a rate is 0, or from 1 to 1e18 a second", key, value));
  }
  return value;
}

double seconds(const fs::path& file, const Json& kernel, std::string_view key) {
  const double value = number(file, kernel, key);
  if (!(value >= 0 && value < 1e18)) refuse(file, fmt::format("'{}' is {}; a time is from 0 up", key, value));
  return value;
}

// The slower way of the link, where the file has one; 0 where it has not.
double link_rate(const fs::path& file, const Json& json) {
  const auto link = json.find("host_link");
  if (link == json.end()) return 0;
  if (!link->is_object()) refuse(file, "'host_link' is not an object");
  return std::min(rate(file, *link, "to_device_bytes_per_second"),
                  rate(file, *link, "to_host_bytes_per_second"));
}

// The catalogue's entry of a GPU that is here, whose description states no rates; null where there is none.
const CatalogueEntry* known_gpu(const DeviceDescription& device) {
  return device.kind == DeviceKind::cuda ? find_in_catalogue(device) : nullptr;
}

// Puts the file's rates into the model; false where there is no file, or it is of another machine, other
// threads or another dtype.
bool read_rates(const fs::path& file, const DeviceDescription& device, DType dtype, CostModel& costs) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return false;
  const Json json = Json::parse(read_small_file(file, kMaxRatesBytes), nullptr, false);
  if (!json.is_object()) refuse(file, "it is no JSON object");
  const Json& machine = member(file, json, "machine", &Json::is_string, "a text");
  const Json& cores = member(file, json, "cores", &Json::is_number_integer, "a whole number");
  const Json& dtypes = member(file, json, "dtypes", &Json::is_object, "an object");
  if (machine != device.name || cores != device.cores || !dtypes.contains(name(dtype))) return false;
  if (const double link = link_rate(file, json); link > 0) costs.set_host_link(link);
  for (const auto& [kernel, fitted] :
       member(file, dtypes, name(dtype), &Json::is_object, "an object").items()) {
    if (!fitted.is_object()) refuse(file, fmt::format("{} is not an object", quote(kernel)));
    costs.set(kernel, {.flops_per_second = rate(file, fitted, "flops_per_second"),
                       .bytes_per_second = rate(file, fitted, "bytes_per_second"),
                       .start_seconds = seconds(file, fitted, "start_seconds")});
  }
  return true;
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

HostLink measure_host_link(Backend& backend, std::int64_t bytes) {
  constexpr int kCopies = 5;
  Arena device(backend, Space::device, bytes);
  Arena host(backend, Space::host, bytes);
  void* const on_device = device.open(0, bytes);
  void* const on_host = host.open(0, bytes);
  const auto bytes_per_second = [&](void* to, const void* from) {
    std::vector<double> copies;
    for (int i = 0; i <= kCopies; ++i) {
      copies.push_back(seconds_of([&] {
        backend.copy(StreamId::copy, to, from, bytes);
        backend.synchronize();
      }));
    }
    copies.erase(copies.begin());  // the first one warms up
    return static_cast<double>(bytes) / median(copies);
  };
  return {.to_device = bytes_per_second(on_device, on_host), .to_host = bytes_per_second(on_host, on_device)};
}

void check_can_write_rates() {
  const fs::path file = rates_file();
  check(!file.empty(), "neither HOME, XDG_CONFIG_HOME nor HEADROOM_RATES says where rates are kept");
  if (file.has_parent_path()) create_folders(file.parent_path());
  check_can_write(file);
}

void write_rates(const fs::path& file, const DeviceDescription& device, std::span<const CalibrationRuns> runs,
                 const std::optional<HostLink>& link) {
  nlohmann::ordered_json json = {{"machine", device.name}, {"cores", device.cores}};
  if (link) {
    json["host_link"] = {{"to_device_bytes_per_second", link->to_device},
                         {"to_host_bytes_per_second", link->to_host}};
  }
  for (const CalibrationRuns& run : runs) {
    const CatalogueEntry* known = known_gpu(device);
    CostModel costs(known == nullptr ? device : known->device, run.dtype);
    calibrate(costs, run.records);
    for (const auto& [kernel, fitted] : costs.kernels()) {
      json["dtypes"][std::string(name(run.dtype))][kernel] = {{"flops_per_second", fitted.flops_per_second},
                                                              {"bytes_per_second", fitted.bytes_per_second},
                                                              {"start_seconds", fitted.start_seconds}};
    }
  }
  write_file(file, json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

MachineCosts this_machine(const DeviceDescription& device, DType dtype) {
  const CatalogueEntry* known = known_gpu(device);
  MachineCosts machine{.costs = known == nullptr ? CostModel(device, dtype) : known->costs(dtype)};
  machine.measured = read_rates(rates_file(), device, dtype, machine.costs);
  return machine;
}

}  // namespace headroom
