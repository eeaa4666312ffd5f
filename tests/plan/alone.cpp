// Plans by a program that is linked once with headroom_plan alone and once with headroom; see alone.sh.
//   h200: what `headroom plan --model qwen3-4b --context 131072 --device h200 --json` prints
//   cpus: the arena of a step, and attention's workspaces, on CPUs of every instruction set
#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "headroom/attention.h"
#include "headroom/core/bytes.h"
#include "headroom/plan.h"

namespace headroom {
namespace {

FoundModel built_in(const PlanOptions& options) {
  return {.config = built_in_model(options.model), .folder = {}, .notes = {}};
}

void plan_h200() {
  const PlanOptions options{.model = "qwen3-4b", .context = 131'072, .device = "h200"};
  const PlanQuestion question =
      plan_question(options, built_in(options), find_catalogue_device(options.device, options.budget_bytes));
  fmt::print("{}", json(answer_plan(question, catalogue_costs(question))));
}

void plan_cpus() {
  for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512}) {
    DeviceDescription device;
    device.kind = DeviceKind::cpu;
    device.cores = 8;
    device.simd = level;
    const PlanOptions options{.model = "qwen3-0.6b", .context = 4096};
    const PlanQuestion question = plan_question(options, built_in(options), {device, 64 * kGiB});
    const CostModel costs(device, question.request.problem.compute_dtype);
    fmt::print("{} {}", name(level), make_plan(question.request, costs).step.arena_bytes);
    const AttentionProblem attention{.seq_q = 1000, .seq_k = 1000, .head_dim = 72};
    for (const AttentionImplementation& row : attention_implementations()) {
      if (!row.supports(attention, device)) continue;
      fmt::print(" {} {} {}", row.name, row.workspace_bytes(attention, device, Pass::forward),
                 row.workspace_bytes(attention, device, Pass::backward));
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace headroom

int main(int count, char** arguments) {
  const std::string_view what = count == 2 ? arguments[1] : "";
  if (what == "h200") headroom::plan_h200();
  if (what == "cpus") headroom::plan_cpus();
}
