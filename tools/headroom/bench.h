// What `headroom bench attention` and `headroom bench loss` share: options, budget, timing, random inputs and
// the forms of output.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "headroom/core/device.h"
#include "headroom/core/error.h"
#include "headroom/core/stream.h"
#include "headroom/core/timing.h"
#include "headroom/device.h"
#include "headroom/memory/staging.h"
#include "headroom/report.h"

namespace headroom {

struct BenchOptions {
  std::string device = "cpu";
  std::optional<std::int64_t> budget;
  int warmup = 1;
  int steps = 10;
  double max_seconds = 10;
  double rest_seconds = 0;  // before each timed pass
  int threads = 0;
  bool json = false;
  bool csv = false;
  bool markdown = false;
  std::optional<std::string> html;
};

// The options whose output has no place for remarks.
struct MachineOutputs {
  CLI::Option* json;
  CLI::Option* csv;
};
// Whether a command has one --device, or declares its own.
enum class BenchDevices : std::uint8_t { one, given_apart };
MachineOutputs add_bench_options(Command app, BenchOptions& options,
                                 BenchDevices devices = BenchDevices::one);

// The device, and what a case may take: the budget given, or what is free now.
struct BenchDevice {
  ListedDevice listed;
  std::int64_t budget = 0;
};
[[nodiscard]] BenchDevice bench_device(const BenchOptions& options);

// machine, commit, and no rows yet.
[[nodiscard]] nlohmann::ordered_json bench_header(const DeviceDescription& device, double peak_gflops);
// Text, CSV or Markdown.
[[nodiscard]] std::string as_asked(const Table& table, const BenchOptions& options);

// One measured case on a page: a line per series, over a size.
struct BenchPoint {
  std::string series;
  std::int64_t size = 0;
  std::optional<double> milliseconds;  // none where it did not run
  std::int64_t bytes = 0;              // 0 where it is not known
};
// Where a page was asked for: time and memory over the size, then the table.
void write_bench_page(const BenchOptions& options, const std::string& title, const std::string& size_label,
                      std::int64_t budget_bytes, std::vector<BenchPoint> points, const Table& table,
                      const DeviceDescription& device);

// elements <- spread * (nearly) standard normal numbers of the seed, from the first-th on; dense, in host
// memory. And of a whole tensor, wherever it is.
void fill_normal(const TensorView& view, std::int64_t first, std::uint64_t seed, float spread,
                 const Stream& host);
void fill_normal(const Tensor& tensor, std::uint64_t seed, float spread, Staging& staging,
                 const Stream& host);

// step() as often as asked for, or until the time is up; at least once.
template <class Step>
void repeat(const BenchOptions& options, const Step& step) {
  double spent = 0;
  for (int i = 0; i < options.steps && spent <= options.max_seconds; ++i) spent += seconds_of(step);
}

// The row of a family's table; an unknown name is an error that lists them.
template <class Row>
const Row& find_implementation(std::span<const Row> table, std::string_view name) {
  std::string names;
  for (const Row& row : table) {
    if (row.name == name) return row;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  fail(ErrorKind::input, "implementation '{}' is unknown; use {}", name, names);
}

}  // namespace headroom
