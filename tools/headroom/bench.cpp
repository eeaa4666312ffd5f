#include "bench.h"

#include <algorithm>

#include "cli.h"
#include "commit.h"
#include "headroom/core/bytes.h"
#include "headroom/core/elements.h"
#include "headroom/core/random.h"
#include "headroom/cpu.h"
#include "headroom/device.h"

namespace headroom {

MachineOutputs add_bench_options(Command app, BenchOptions& options, BenchDevices devices) {
  app.add_whole("--warmup", options.warmup, 0, 1000, "Runs before timing");
  app.add_whole("--steps", options.steps, 1, 100'000, "Timed runs, of which the median counts");
  app.add_number("--max-seconds", options.max_seconds, {.most = 1e6},
                 "At most so long per case, after one run");
  if (devices == BenchDevices::one) app.add_text("--device", options.device, "Where to run: cpu or cuda:N");
  app.add_budget("--budget", options.budget,
                 "Bytes a case may take, such as 4GiB (default: what is free now)");
  add_threads_option(app, options.threads);
  CLI::Option* json = app.add_flag("--json", options.json, "For machines; keys in docs/cli.md");
  CLI::Option* csv = app.add_flag("--csv", options.csv, "Comma-separated")->excludes(json);
  app.add_flag("--markdown", options.markdown, "A Markdown table")->excludes(json)->excludes(csv);
  add_html_option(app, options.html);
  return {.json = json, .csv = csv};
}

BenchDevice bench_device(const BenchOptions& options) {
  BenchDevice device{find_device(parse_device(options.device)), 0};
  device.budget = device_budget(device.listed, options.budget).bytes;
  return device;
}

nlohmann::ordered_json bench_header(const DeviceDescription& device, double peak_gflops) {
  if (device.kind == DeviceKind::cuda) {
    return {{"machine",
             {{"name", device.name},
              {"cores", device.cores},
              {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)}}},
            {"commit", HEADROOM_COMMIT},
            {"rows", nlohmann::ordered_json::array()}};
  }
  return {{"machine",
           {{"name", device.name},
            {"cores", device.cores},
            {"simd", name(device.simd)},
            {"peak_gflops", {{"f32", peak_gflops}, {"bf16", peak_gflops}}}}},
          {"commit", HEADROOM_COMMIT},
          {"rows", nlohmann::ordered_json::array()}};
}

std::string as_asked(const Table& table, const BenchOptions& options) {
  return options.csv ? table.csv() : options.markdown ? table.markdown() : table.text();
}

namespace {

// Takes from every series' name the words at its end that all share: they are said once, above.
std::string take_common_words(std::vector<BenchPoint>& points) {
  std::string common = points[0].series.substr(std::min(points[0].series.find(' '), points[0].series.size()));
  for (const BenchPoint& point : points) {
    while (!point.series.ends_with(common)) common.erase(0, std::min(common.find(' ', 1), common.size()));
  }
  for (BenchPoint& point : points) point.series.resize(point.series.size() - common.size());
  return common.empty() ? common : common.substr(1) + " \u00b7 ";
}

}  // namespace

void write_bench_page(const BenchOptions& options, const std::string& title, const std::string& size_label,
                      std::int64_t budget_bytes, std::vector<BenchPoint> points, const Table& table,
                      const DeviceDescription& device) {
  if (!options.html || points.empty()) return;
  const std::string common = take_common_words(points);
  const Axis sizes{.label = size_label, .unit = Unit::tokens, .logarithmic = true};
  LineChart time;
  time.title = fmt::format("Time over {}", size_label);
  time.x = sizes;
  time.y = {.label = "median of a run", .unit = Unit::milliseconds, .logarithmic = true};
  LineChart memory;
  memory.title = fmt::format("Memory over {}", size_label);
  memory.x = sizes;
  memory.y = {.label = "reserved", .unit = Unit::bytes, .logarithmic = true};
  memory.levels = {{"budget", static_cast<double>(budget_bytes)}};
  memory.note = "Known before anything runs; what is over the budget is refused.";
  const auto add = [](LineChart& chart, const BenchPoint& point, double y) {
    auto found = std::ranges::find(chart.series, point.series, &LineChart::Series::name);
    if (found == chart.series.end()) found = chart.series.insert(found, {.name = point.series});
    found->points.push_back({static_cast<double>(point.size), y});
  };
  for (const BenchPoint& point : points) {
    if (point.milliseconds) add(time, point, *point.milliseconds);
    if (point.bytes > 0) add(memory, point, static_cast<double>(point.bytes));
  }
  for (LineChart* chart : {&time, &memory}) {
    for (LineChart::Series& series : chart->series) {
      std::ranges::stable_sort(series.points, {}, &LineChart::Point::x);
    }
  }
  const std::string hardware =
      device.kind == DeviceKind::cpu
          ? fmt::format("{} cores with {}", device.cores, name(device.simd))
          : fmt::format("compute capability {}.{}", device.compute_major, device.compute_minor);
  write_html(*options.html, {.title = title,
                             .subtitle = fmt::format("{}{}, {} \u00b7 commit {}", common, device.name,
                                                     hardware, HEADROOM_COMMIT),
                             .sections = {std::move(time), std::move(memory),
                                          TableSection{.title = "Every case", .table = table}}});
}

void fill_normal(const TensorView& view, std::int64_t first, std::uint64_t seed, float spread,
                 const Stream& host) {
  const Random random(seed);
  const std::int64_t elements = view.elements();
  constexpr std::int64_t kChunk = 1 << 14;
  parallel_for(host, (elements + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
    for (std::int64_t i = chunk * kChunk; i < std::min(elements, (chunk + 1) * kChunk); ++i) {
      // Normal enough, and cheap: four uniform numbers.
      const std::uint64_t bits = random.bits(static_cast<std::uint64_t>(first + i));
      const auto sum =
          static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
      write_element(view, i, (sum / 65536.0F - 2.0F) * 1.7320508F * spread);
    }
  });
}

void fill_normal(const Tensor& tensor, std::uint64_t seed, float spread, Staging& staging,
                 const Stream& host) {
  const DType dtype = tensor.view().dtype();
  const TensorPart whole{tensor, 0, tensor.view().elements()};
  staging.upload(whole, [&](std::span<std::byte> piece, std::int64_t first) {
    fill_normal(TensorView(piece.data(), dtype, {std::ssize(piece) / size_bytes(dtype)}), first, seed, spread,
                host);
  });
}

}  // namespace headroom
