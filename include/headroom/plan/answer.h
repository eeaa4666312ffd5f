// The whole answer of `headroom plan` about a model and a device: as a value, as JSON and as a page. It
// depends on the question and the costs alone, not on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/plan/plan.h"
#include "headroom/report/page.h"

namespace headroom {

struct PlanQuestion {
  std::string model;  // its name, and that of the device: answers repeat them
  std::string device;
  PlanRequest request;
  std::vector<std::string> notes{};  // what the reader should know of the model's files
  bool compare = false;              // with strategies that people know
};

struct PlanCosts {
  CostModel costs;
  std::string source;  // of its rates
};

struct PlanAnswer {
  struct Compared {
    std::string name;
    std::int64_t bytes = 0;  // of device and host
    std::int64_t host_bytes = 0;
    double seconds = 0;
  };
  PlanQuestion question;
  PlanCosts costs;
  Plan plan{};
  std::vector<StateBytes> state{};
  std::vector<StepStageUsage> stages{};
  std::vector<Change> changes{};
  std::vector<Compared> compared{};  // beside the chosen one
  std::int64_t max_context = 0;
  std::optional<std::string> warning{};  // about the dtype
  std::vector<std::string> notes{};  // those of the question, that warning, and what else there is to know
};
[[nodiscard]] PlanAnswer answer_plan(PlanQuestion question, PlanCosts costs);

// The keys are in docs/cli.md.
[[nodiscard]] std::string json(const PlanAnswer& answer);

[[nodiscard]] Page plan_page(const PlanAnswer& answer);

// Parts of the page that are printed too.
[[nodiscard]] std::string seconds_text(double seconds);
[[nodiscard]] Table state_table(const PlanAnswer& answer);
[[nodiscard]] Table compared_table(const PlanAnswer& answer);
[[nodiscard]] Table changes_table(const PlanAnswer& answer);

}  // namespace headroom
