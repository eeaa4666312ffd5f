#include "headroom/eager.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "headroom/core/bytes.h"
#include "report/json.h"

namespace headroom {
namespace {

constexpr std::int64_t kContextUnit = 256;  // tokens

OrderedJson failure_json(const std::optional<EagerFailure>& failure) {
  if (!failure) return nullptr;
  return {{"block", failure->block},
          {"stage", failure->stage},
          {"bytes", failure->bytes},
          {"allocated_bytes", failure->allocated_bytes}};
}

// Stages worth a line: whole ones and the first layer.
bool in_short(const StagePath& path) {
  const Stage first_layer{StageKind::layer, 0};
  return path.depth() == 1 ||
         (path.depth() > 1 && (path.stages().back().kind == StageKind::embedding ||
                               (path.stages().back() == first_layer &&
                                path.stages()[path.depth() - 2].kind == StageKind::forward)));
}

std::string state_words(const EagerOptions& options) {
  if (options.autocast()) return "f32 parameters, gradients and moments under autocast";
  if (options.dtype == DType::f32) return "f32 parameters, gradients and moments";
  if (options.state == StatePrecision::eight_bit) {
    return fmt::format("{} parameters and gradients, 8-bit moments", name(options.dtype));
  }
  return fmt::format("{0} parameters, gradients and moments", name(options.dtype));
}

}  // namespace

EagerAnswer answer_eager(EagerQuestion asked) {
  EagerAnswer answer{.question = std::move(asked)};
  const EagerQuestion& question = answer.question;
  const auto rehearse_at = [&](std::int64_t context) {
    StepSizes sizes = question.sizes;
    sizes.context = context;
    return rehearse_eager(question.config, sizes, question.options, question.device);
  };
  const Ledger ledger = rehearse_at(question.sizes.context);
  answer.memory = eager_memory(ledger);
  std::erase_if(answer.memory.stages, [](const StageUsage& row) { return !in_short(row.stage); });
  answer.at_peak = ledger.usage(Space::device).at_peak;
  answer.failure = eager_memory(ledger, question.budget_bytes).failure;
  const std::int64_t most = std::min<std::int64_t>(
      std::numeric_limits<std::int32_t>::max(), most_eager_tokens(question.options) / question.sizes.batch);
  const auto in_units = [&](std::int64_t count) { return rehearse_at(count * kContextUnit); };
  answer.max_context = kContextUnit * largest_context(question.budget_bytes, most / kContextUnit, in_units,
                                                      question.sizes.context / kContextUnit + 1);
  answer.longer_may_fit = answer.max_context + kContextUnit > most;
  return answer;
}

RingAnswer answer_ring_softmax(RingSoftmax ring, const DeviceDescription& device, std::int64_t budget_bytes) {
  RingAnswer answer{.ring = ring, .budget_bytes = budget_bytes, .rows = {}};
  using Variant = RingSoftmax::Variant;
  for (const auto& [variant, name] :
       {std::pair{Variant::as_written, "as written"}, std::pair{Variant::in_place, "in place"},
        std::pair{Variant::chunked, "in chunks"}}) {
    ring.variant = variant;
    const Ledger ledger = rehearse_ring_softmax(ring, device);
    std::optional<EagerFailure> failure = eager_memory(ledger, budget_bytes).failure;
    if (failure) failure->stage = ring_softmax_line(failure->path);
    answer.rows.push_back({name, eager_memory(ledger), std::move(failure)});
  }
  return answer;
}

std::string json(const EagerAnswer& answer) {
  const EagerQuestion& question = answer.question;
  return indented(
      {{"model", question.model},
       {"context", question.sizes.context},
       {"batch", question.sizes.batch},
       {"runtime", "pytorch"},
       {"fits", !answer.failure},
       {"arena_bytes", nullptr},
       {"live_peak_bytes", answer.memory.live_peak_bytes},
       {"reserved_bytes", answer.memory.reserved_bytes},
       {"host_bytes", 0},
       {"budget_bytes", question.budget_bytes},
       {"by_category", json_by_category(answer.at_peak)},
       {"by_stage", json_by_stage(answer.memory.stages, [](const StagePath& path) { return path.text(); })},
       {"strategy", describe(question.options)},
       {"max_context", answer.max_context},
       {"step_seconds", nullptr},
       {"failure", failure_json(answer.failure)},
       {"advice", OrderedJson::array()}});
}

std::string json(const RingAnswer& answer) {
  OrderedJson rows = OrderedJson::array();
  for (const RingAnswer::Row& row : answer.rows) {
    rows.push_back({{"variant", row.variant},
                    {"live_peak_bytes", row.memory.live_peak_bytes},
                    {"reserved_bytes", row.memory.reserved_bytes},
                    {"failure", failure_json(row.failure)}});
  }
  return indented({{"program", "ring-softmax"}, {"budget_bytes", answer.budget_bytes}, {"rows", rows}});
}

std::string describe(const EagerFailure& failure) {
  return fmt::format("{} asks for {} in {}, with {} allocated", failure.block, format_bytes(failure.bytes),
                     failure.stage, format_bytes(failure.allocated_bytes));
}

std::string describe(const EagerOptions& options) {
  constexpr std::array kLosses = {"full logits", "loss in chunks of {}", "loss in chunks of {}, made again",
                                  "loss in compiled chunks of {}"};
  return fmt::format("{} attention, {}, {}{}", options.attention == EagerAttention::sdpa ? "SDPA" : "naive",
                     fmt::format(fmt::runtime(kLosses[static_cast<std::size_t>(options.loss)]),
                                 format_count(options.loss_chunk)),
                     options.checkpoint_layers ? "every layer checkpointed" : "no checkpointing",
                     options.adamw ? fmt::format(", AdamW with {}", state_words(options)) : "");
}

}  // namespace headroom
