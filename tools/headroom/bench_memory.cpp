// headroom bench memory: for each shape of trace, what the packer, an online first fit and a caching
// allocator would reserve, over the largest sum of live bytes, and how long packing takes.
#include <fmt/ostream.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "cli.h"
#include "command.h"
#include "commit.h"
#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "headroom/memory.h"
#include "headroom/report.h"
#include "progress.h"
#include "traces.h"

namespace headroom {
namespace {

struct Options {
  std::int64_t traces = 100;
  std::int64_t blocks = 10'000;
  std::int64_t large_events = 100'000;
  bool json = false;
};

struct Ratios {
  double sum = 0;
  double largest = 0;

  void add(std::int64_t bytes, std::int64_t live) {
    const double ratio = live == 0 ? 1 : static_cast<double>(bytes) / static_cast<double>(live);
    sum += ratio;
    largest = std::max(largest, ratio);
  }
};

struct Row {
  std::string shape;
  std::int64_t traces = 0;
  std::int64_t events = 0;  // of the largest trace
  Ratios packer, first_fit, caching;
  std::vector<double> seconds;

  [[nodiscard]] double median_seconds() const {
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
  [[nodiscard]] double worst_seconds() const { return *std::ranges::max_element(seconds); }
};

Row measure(const std::string& shape, std::int64_t traces,
            const std::function<std::vector<BlockLifetime>(std::uint64_t)>& make) {
  Row row{.shape = shape,
          .traces = traces,
          .events = 0,
          .packer = {},
          .first_fit = {},
          .caching = {},
          .seconds = {}};
  Progress progress(shape + " trace");
  for (std::int64_t i = 0; i < traces; ++i) {
    progress.at(i, traces);
    const std::vector<BlockLifetime> blocks = make(static_cast<std::uint64_t>(i));
    const std::int64_t live = live_peak(blocks);
    const auto start = std::chrono::steady_clock::now();
    const Packing packing = pack(blocks);
    row.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    row.events = std::max(row.events, static_cast<std::int64_t>(blocks.size()) * 2);
    row.packer.add(packing.bytes, live);
    row.first_fit.add(first_fit(blocks).bytes, live);
    row.caching.add(simulate_caching_allocator(blocks).reserved_peak_bytes, live);
  }
  return row;
}

std::string ratio_cell(const Ratios& ratios, std::int64_t traces) {
  return fmt::format("{:.4f} / {:.4f}", ratios.sum / static_cast<double>(traces), ratios.largest);
}

nlohmann::ordered_json ratio_json(const Ratios& ratios, std::int64_t traces) {
  return {{"mean", ratios.sum / static_cast<double>(traces)}, {"worst", ratios.largest}};
}

std::vector<BlockLifetime> training_trace(std::int64_t layers, std::uint64_t seed) {
  return lifetimes(training_step_ledger(layers, seed), Space::device);
}

void run(const Options& options, std::ostream& out) {
  std::vector<Row> rows;
  rows.push_back(measure("training step", options.traces, [&](std::uint64_t seed) {
    return training_trace(2 + static_cast<std::int64_t>(seed % 99), seed);
  }));
  rows.push_back(measure("random", options.traces,
                         [&](std::uint64_t seed) { return random_trace(options.blocks, seed); }));
  const std::int64_t large_blocks = options.large_events / 2;
  rows.push_back(measure("large training step", 3, [&](std::uint64_t seed) {
    return training_trace(layers_for_blocks(large_blocks), seed);
  }));
  rows.push_back(
      measure("large random", 3, [&](std::uint64_t seed) { return random_trace(large_blocks, seed); }));

  if (options.json) {
    nlohmann::ordered_json json = {{"machine", {{"name", describe_cpu().name}, {"cores", usable_cores()}}},
                                   {"commit", HEADROOM_COMMIT},
                                   {"rows", nlohmann::ordered_json::array()}};
    for (const Row& row : rows) {
      json["rows"].push_back(
          {{"shape", row.shape},
           {"traces", row.traces},
           {"events", row.events},
           {"packer", ratio_json(row.packer, row.traces)},
           {"first_fit", ratio_json(row.first_fit, row.traces)},
           {"caching_allocator", ratio_json(row.caching, row.traces)},
           {"pack_milliseconds",
            {{"median", row.median_seconds() * 1e3}, {"worst", row.worst_seconds() * 1e3}}}});
    }
    return print_json(json, out);
  }
  out << "reserved bytes over the largest live sum, mean / worst; milliseconds to pack, median / worst\n";
  Table table({"trace", "traces", "events", "packer", "first fit", "caching allocator", "pack ms"});
  for (const Row& row : rows) {
    table.add({row.shape, std::to_string(row.traces), format_count(row.events),
               ratio_cell(row.packer, row.traces), ratio_cell(row.first_fit, row.traces),
               ratio_cell(row.caching, row.traces),
               fmt::format("{:.1f} / {:.1f}", row.median_seconds() * 1e3, row.worst_seconds() * 1e3)});
  }
  out << table.text();
}

}  // namespace

void add_bench_memory(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_whole("--traces", options->traces, 1, 100'000, "Traces of each shape");
  app.add_whole("--blocks", options->blocks, 1, 1'000'000, "Blocks of a random trace");
  app.add_whole("--large-events", options->large_events, 2, 10'000'000, "Events of the large traces");
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer("Example:\n  headroom bench memory --traces 1000");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
