// The page of `headroom plan --html`.
#pragma once

#include <string>
#include <vector>

#include "headroom/plan.h"
#include "headroom/report.h"

namespace headroom {

// What plan says, on the terminal, as JSON and as a page.
struct PlanAnswer {
  struct Compared {
    std::string name;
    std::int64_t bytes = 0;  // of device and host
    std::int64_t host_bytes = 0;
    double seconds = 0;
  };
  Plan plan;
  std::vector<StageUsage> stages;
  std::vector<Change> changes;
  std::vector<Compared> compared;  // strategies that people know, beside the chosen one
  std::int64_t max_context = 0;
  std::string rates;
  std::optional<std::string> warning;  // about the dtype
  std::vector<std::string> notes;      // that warning, and what else the reader should know
};

[[nodiscard]] std::string seconds_text(double seconds);

[[nodiscard]] Table compared_table(const PlanAnswer& answer);
[[nodiscard]] Table changes_table(const PlanAnswer& answer);

[[nodiscard]] Page plan_page(const std::string& model, const PlanRequest& request, const PlanAnswer& answer,
                             const CostModel& costs);

}  // namespace headroom
