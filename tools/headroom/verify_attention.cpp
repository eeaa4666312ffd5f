// headroom verify attention: every implementation against the fp64 reference, on the shared list of cases.
#include <fmt/ostream.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "cli.h"
#include "commit.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "headroom/report.h"
#include "progress.h"

namespace headroom {
namespace {

struct Options {
  std::string device = "cpu";
  std::string implementation;
  int threads = 0;
  bool json = false;
};

struct GroupResult {
  int cases = 0;
  int failed = 0;
  double worst = 0;  // error over what is allowed
  std::string worst_case;
};

struct ImplementationResult {
  std::string name;
  int served = 0;
  std::map<std::string, GroupResult> groups;
  std::vector<std::string> refusals;  // different reasons
};

ImplementationResult verify(std::string_view name, const std::vector<AttentionCase>& cases, int threads) {
  ImplementationResult result{.name = std::string(name), .served = 0, .groups = {}, .refusals = {}};
  Progress progress(fmt::format("{}: case", name));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
    const Support support = serves(cases[i], name);
    if (!support) {
      if (std::ranges::find(result.refusals, support.reason()) == result.refusals.end()) {
        result.refusals.push_back(support.reason());
      }
      continue;
    }
    ++result.served;
    GroupResult& group = result.groups[cases[i].group];
    const double worst = run_attention_case(cases[i], name, threads).worst();
    ++group.cases;
    group.failed += !(worst <= 1);
    if (!(worst <= group.worst)) {
      group.worst = worst;
      group.worst_case = cases[i].name;
    }
  }
  return result;
}

int run(const Options& options, std::ostream& out) {
  const Device device = parse_device(options.device);
  static_cast<void>(find_device(device));
  check(device.kind == DeviceKind::cpu, "device '{}': attention has kernels for cpu", options.device);
  const std::vector<AttentionCase> cases = attention_cases();
  const int threads = options.threads == 0 ? usable_cores() : options.threads;
  std::vector<ImplementationResult> results;
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.name == "reference" || (!options.implementation.empty() && row.name != options.implementation))
      continue;
    results.push_back(verify(row.name, cases, threads));
  }
  check(!results.empty(), "implementation '{}' is unknown; use tiled, naive or naive-recompute",
        options.implementation);

  int ran = 0;
  int failed = 0;
  double worst = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Table table({"implementation", "cases", "served", "failed", "error / allowed", "worst case"});
  for (const ImplementationResult& result : results) {
    for (const auto& [name, group] : result.groups) {
      ran += group.cases;
      failed += group.failed;
      worst = std::max(worst, group.worst);
      table.add({result.name + ", " + name, std::to_string(group.cases), "", std::to_string(group.failed),
                 fmt::format("{:.2f}", group.worst), group.worst_case});
      rows.push_back({{"implementation", result.name},
                      {"group", name},
                      {"cases", group.cases},
                      {"failed", group.failed},
                      {"worst", group.worst},
                      {"worst_case", group.worst_case}});
    }
    table.add({result.name, std::to_string(cases.size()), std::to_string(result.served), "", "", ""});
  }
  if (options.json) {
    out << nlohmann::ordered_json{{"cases", ran},
                                  {"failed", failed},
                                  {"worst", worst},
                                  {"simd", name(describe_cpu().simd)},
                                  {"commit", HEADROOM_COMMIT},
                                  {"groups", rows}}
               .dump(2)
        << "\n";
  } else {
    out << "error over what is allowed: twice (gradients three times) that of a plain computation of the "
           "same precision, or a\n"
           "few units in the last place\n\n"
        << table.text();
    for (const ImplementationResult& result : results) {
      for (const std::string& reason : result.refusals) fmt::print(out, "{} {}\n", result.name, reason);
    }
    fmt::print(out, "verify attention: {} cases on {}, {} failed\n", ran, name(describe_cpu().simd), failed);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

void add_verify_attention(CLI::App& app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<Options>();
  app.add_option("--device", options->device, "Where to run: cpu")->capture_default_str();
  app.add_option("--impl", options->implementation, "Only this one: tiled, naive, naive-recompute");
  app.add_option("--threads", options->threads, "Threads to run on (default: every core)")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer("Example:\n  HEADROOM_SIMD=avx2 headroom verify attention --impl tiled");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
