// What a training run looks like: its plan, the memory of a micro-step, its loss.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/report/page.h"
#include "training_run.h"

namespace headroom {

struct TrainingPlan {
  std::string model;  // as it was asked for
  const TrainingSetup& setup;
  const TrainingFit& fit;
  const Data& data;
  std::int64_t budget_bytes = 0;
  std::int64_t naive_bytes = 0;
  std::int64_t process_bytes = 0;        // resident when the plan was made, outside the budget
  std::optional<std::string> warning{};  // about the dtype
  std::vector<std::string> notes{};      // about the model's files and a resumed run
};

// Without a result: before the first step. The loss is read from the run's metrics.jsonl, so a resumed run
// shows all of it.
[[nodiscard]] Page training_page(const TrainingPlan& plan, const std::optional<TrainingResult>& result);

}  // namespace headroom
