// Plans a model for a GPU that need not be here, then trains a small one on this machine inside 64 MiB.
// Usage: plan_and_train FOLDER
#include <headroom/headroom.h>

#include <cstdio>

namespace {

bool plan() {
  const headroom::PlanQuestion question =
      headroom::plan_question({.model = "qwen3-4b", .context = 131'072, .device = "h200"});
  const headroom::PlanAnswer answer = headroom::answer_plan(question, headroom::plan_costs(question));
  std::printf("%s on %s: %s, %s; up to %s tokens fit\n", question.model.c_str(), question.device.c_str(),
              headroom::format_bytes(answer.plan.step.arena_bytes).c_str(),
              answer.plan.fits ? "fits" : "does not fit", headroom::format_count(answer.max_context).c_str());
  return answer.plan.fits;
}

bool train(const char* folder) {
  headroom::TrainingPlan plan = headroom::plan_training({.model = "demo",
                                                         .data = "recall",
                                                         .context = 256,
                                                         .budget_bytes = 64 * headroom::kMiB,
                                                         .optimizer = {.steps = 5},
                                                         .out = folder,
                                                         .overwrite = true});
  const auto print_step = [](const headroom::StepReport& report) {
    std::printf("step %d: loss %.4f\n", static_cast<int>(report.step), report.loss.value_or(0));
  };
  const headroom::TrainingResult result = headroom::train(plan, {.step = print_step});
  std::fputs(headroom::json(plan, result).c_str(), stdout);
  return result.last_step == 5 && result.live_peak_bytes <= plan.fit.needed_bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: plan_and_train FOLDER\n");
    return 2;
  }
  try {
    return plan() && train(argv[1]) ? 0 : 1;
  } catch (const headroom::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
