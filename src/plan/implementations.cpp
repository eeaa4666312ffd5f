#include "headroom/plan/implementations.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

#include "headroom/attention.h"
#include "headroom/loss.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

// The rows of the kernels that are named so, in the order of their first use.
std::vector<std::string_view> rows_of(const TrainingRehearsal& rehearsal,
                                      std::initializer_list<std::string_view> kernels) {
  std::vector<std::string_view> rows;
  for (const WorkRecord& record : rehearsal.micro_step) {
    const Work& work = record.work;
    if (std::ranges::find(kernels, work.kernel) == kernels.end()) continue;
    if (std::ranges::find(rows, work.row) == rows.end()) rows.push_back(work.row);
  }
  return rows;
}

// Why the rows before the one that runs do not, without those that are another kind of device's: on a GPU,
// those that would take the problem on a CPU.
template <class Row, class Problem>
std::vector<Refusal> refusals(std::span<const Row> table, const Problem& problem,
                              const DeviceDescription& device) {
  std::vector<Refusal> refusals = choose(table, problem, device).refusals;
  DeviceDescription other;
  other.kind = device.kind == DeviceKind::cpu ? DeviceKind::cuda : DeviceKind::cpu;
  std::erase_if(refusals, [&](const Refusal& refusal) {
    const auto row = std::ranges::find(table, refusal.implementation, &Row::name);
    return row->only_when_named || row->supports(problem, other);
  });
  return refusals;
}

}  // namespace

std::vector<StepImplementation> step_implementations(const TrainingProblem& problem, const Strategy& strategy,
                                                     const DeviceDescription& device) {
  const TrainingRehearsal rehearsal = rehearse(problem, strategy, device);
  const Decoder decoder(problem.config, strategy, problem.sizes, problem.mask);
  LossProblem loss = loss_problem(problem);
  loss.chunk_tokens = strategy.loss_chunk_tokens;
  loss.chunk_vocab = strategy.loss_chunk_vocab;
  const std::int64_t tokens = problem.sizes.batch * problem.sizes.context;
  const std::int64_t hidden = problem.config.hidden;
  const DType dtype = problem.compute_dtype;
  const Product product{.a = TensorView(nullptr, dtype, {tokens, hidden}),
                        .b = TensorView(nullptr, dtype, {hidden, hidden}),
                        .c = TensorView(nullptr, dtype, {tokens, hidden})};
  return {{.family = "attention",
           .rows = rows_of(rehearsal, {"attention", "attention backward"}),
           .refusals = refusals(attention_implementations(),
                                attention_problem(problem, decoder.layer_mask(0)), device)},
          {.family = "loss",
           .rows = rows_of(rehearsal, {"loss", "loss backward"}),
           .refusals = refusals(loss_implementations(), loss, device)},
          {.family = "products",
           .rows = rows_of(rehearsal, {"product", "mlp", "mlp backward"}),
           .refusals = refusals(product_rows(), product, device)}};
}

std::string describe(const StepImplementation& implementation) {
  std::string text = fmt::format("{}", fmt::join(implementation.rows, ", "));
  if (implementation.refusals.empty()) return text + ", the fastest there is";
  for (const Refusal& refusal : implementation.refusals)
    text += fmt::format("; not {}: {}", refusal.implementation, refusal.reason);
  return text;
}

}  // namespace headroom
