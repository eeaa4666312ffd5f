#include "verify.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli.h"
#include "commit.h"
#include "headroom/cpu.h"
#include "headroom/report.h"

namespace headroom {

void add_verify_options(Command app, VerifyOptions& options, const std::string& names) {
  app.add_text("--device", options.device, "Where to run: cpu or cuda:N");
  app.add_text("--impl", options.implementation, fmt::format("Only this one: {}", names));
  add_threads_option(app, options.threads);
  app.add_whole("--every", options.every, 1, 1000, "Only every n-th case, for a quick look");
  app.add_flag("--json", options.json, "For machines; keys in docs/cli.md");
}

Verification::OfImplementation& Verification::of(std::string_view implementation) {
  const auto found = std::ranges::find(results_, implementation, &OfImplementation::name);
  if (found != results_.end()) return *found;
  return results_.emplace_back(OfImplementation{std::string(implementation), 0, {}, {}});
}

void Verification::refused(std::string_view implementation, const std::string& reason) {
  std::vector<std::string>& refusals = of(implementation).refusals;
  if (std::ranges::find(refusals, reason) == refusals.end()) refusals.push_back(reason);
}

void Verification::ran(std::string_view implementation, const std::string& group, const std::string& name,
                       double worst) {
  // Nothing is worse, and it stays so beside whatever else is compared with it.
  if (std::isnan(worst)) worst = std::numeric_limits<double>::infinity();
  OfImplementation& result = of(implementation);
  Group& sums = result.groups[group];
  ++result.served;
  ++sums.cases;
  sums.failed += worst > 1;
  if (worst > sums.worst) {
    sums.worst = worst;
    sums.worst_case = name;
  }
}

int Verification::report(const VerifyOptions& options, const nlohmann::ordered_json& more,
                         std::ostream& out) const {
  int ran = 0;
  int failed = 0;
  double worst = 0;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Table table({"implementation", "cases", "served", "failed", "error / allowed", "worst case"});
  for (const OfImplementation& result : results_) {
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
    table.add({result.name, std::to_string(cases_), std::to_string(result.served), "", "", ""});
  }
  if (options.json) {
    nlohmann::ordered_json json = {{"cases", ran},
                                   {"failed", failed},
                                   {"worst", worst},
                                   {"device", options.device},
                                   {"simd", name(describe_cpu().simd)},
                                   {"commit", HEADROOM_COMMIT},
                                   {"groups", rows}};
    json.update(more);
    print_json(json, out);
  } else {
    out << "error over what is allowed: twice (gradients three times) that of a plain computation of the "
           "same precision, or a\n"
           "few units in the last place\n\n"
        << table.text();
    for (const OfImplementation& result : results_) {
      for (const std::string& reason : result.refusals) fmt::print(out, "{} {}\n", result.name, reason);
    }
    fmt::print(out, "verify {}: {} cases on {}, {} failed\n", what_, ran,
               options.device == "cpu" ? name(describe_cpu().simd) : std::string_view(options.device),
               failed);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace headroom
