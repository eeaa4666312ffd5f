// The whole answer of `headroom plan` about a model and a device: as a value, as JSON and as a page. It
// depends on the question and the costs alone, not on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/plan/links.h"
#include "headroom/plan/plan.h"
#include "headroom/report/page.h"

namespace headroom {

inline constexpr std::int64_t kMostPlannedRanks = 1024;

struct PlanQuestion {
  std::string model;  // its name, and that of the device: answers repeat them
  std::string device;
  PlanRequest request;
  std::vector<std::string> notes{};  // what the reader should know of the model's files
  bool compare = false;              // with strategies that people know
  bool fewest_ranks = false;         // plan for the smallest number of ranks that fits
  // Of the link between ranks; what is left out is that of the device.
  std::optional<double> link_bytes_per_second{};
  std::optional<Seconds> link_latency{};
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
  // Where the plan does not fit: the smallest number of ranks that would; nothing where none up to
  // kMostPlannedRanks does.
  std::optional<std::int64_t> smallest_ranks{};
  NamedLink link{};                      // between ranks
  std::optional<std::string> warning{};  // about the dtype
  std::vector<std::string> notes{};  // those of the question, that warning, and what else there is to know
};
// Throws where the fewest ranks are asked for and no number of them fits.
[[nodiscard]] PlanAnswer answer_plan(PlanQuestion question, PlanCosts costs);

// The link between so many ranks of the question's device.
[[nodiscard]] NamedLink rank_link(const PlanQuestion& question, std::int64_t ranks);

// From which context on the ranks of the question are faster than one of them, in steps of 256 tokens and up
// to the question's context; both take the strategy that is fastest there. Nothing where they are not.
[[nodiscard]] std::optional<std::int64_t> crossover_context(const PlanQuestion& question,
                                                            const PlanCosts& costs);

// The keys are in docs/cli.md.
[[nodiscard]] std::string json(const PlanAnswer& answer);

[[nodiscard]] Page plan_page(const PlanAnswer& answer);

// How the strategy's ranks divide attention: ring, heads or product:N.
[[nodiscard]] std::string way_name(const Strategy& strategy);

// Parts of the page that are printed too.
[[nodiscard]] std::string seconds_text(double seconds);
[[nodiscard]] Table rank_table(const PlanAnswer& answer);
[[nodiscard]] Table state_table(const PlanAnswer& answer);
[[nodiscard]] Table compared_table(const PlanAnswer& answer);
[[nodiscard]] Table changes_table(const PlanAnswer& answer);

}  // namespace headroom
