#include "plan_eager.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/report.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kContextUnit = 256;  // tokens

Json to_json(const std::optional<EagerFailure>& failure) {
  if (!failure) return nullptr;
  return {{"block", failure->block},
          {"stage", failure->stage},
          {"bytes", failure->bytes},
          {"allocated_bytes", failure->allocated_bytes}};
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
                     options.adamw ? ", AdamW" : "");
}

// Stages worth a line: whole ones and the first layer.
bool in_short(const std::string& stage) {
  return !stage.empty() && (stage.find('/') == std::string::npos || stage.ends_with("/embedding") ||
                            stage.ends_with("forward/layer 0"));
}

}  // namespace

bool plan_eager(const EagerPlan& plan, std::ostream& out) {
  const PlanRequest& request = plan.request;
  const auto rehearse_at = [&](std::int64_t context) {
    StepSizes sizes = request.problem.sizes;
    sizes.seq = context;
    return rehearse_eager(request.problem.config, sizes, plan.options, request.device);
  };
  const Ledger ledger = rehearse_at(request.problem.sizes.seq);
  const EagerMemory whole = eager_memory(ledger);
  const EagerMemory bounded = eager_memory(ledger, request.budget_bytes);
  const bool fits = !bounded.failure;
  const std::int64_t most =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             most_eager_tokens(plan.options) / request.problem.sizes.batch);
  const auto in_units = [&](std::int64_t count) { return rehearse_at(count * kContextUnit); };
  const std::int64_t max_context =
      kContextUnit * largest_context(request.budget_bytes, most / kContextUnit, in_units,
                                     request.problem.sizes.seq / kContextUnit + 1);
  if (plan.json) {
    Json by_category;
    const CategoryBytes& at_peak = ledger.usage(Space::device).at_peak;
    for (int i = 0; i < kCategoryCount; ++i) {
      const std::int64_t bytes = at_peak[static_cast<std::size_t>(i)];
      if (bytes > 0) by_category[std::string(name(static_cast<Category>(i)))] = bytes;
    }
    Json stages = Json::array();
    for (const StageUsage& row : whole.stages) {
      if (in_short(row.stage))
        stages.push_back(
            {{"stage", row.stage}, {"live_bytes", row.live_bytes}, {"peak_bytes", row.peak_bytes}});
    }
    const Json json = {{"model", plan.model},
                       {"context", request.problem.sizes.seq},
                       {"batch", request.problem.sizes.batch},
                       {"runtime", "pytorch"},
                       {"fits", fits},
                       {"arena_bytes", nullptr},
                       {"live_peak_bytes", whole.live_peak_bytes},
                       {"reserved_bytes", whole.reserved_bytes},
                       {"host_bytes", 0},
                       {"budget_bytes", request.budget_bytes},
                       {"by_category", by_category},
                       {"by_stage", stages},
                       {"strategy", describe(plan.options)},
                       {"max_context", max_context},
                       {"step_seconds", nullptr},
                       {"failure", to_json(bounded.failure)},
                       {"advice", Json::array()}};
    print_json(json, out);
    return fits;
  }
  fmt::print(out, "model     {}, {} tokens, {}, in eager PyTorch: {}\n", plan.model,
             format_count(request.problem.sizes.batch * request.problem.sizes.seq), name(plan.options.dtype),
             describe(plan.options));
  fmt::print(out, "device    {}, budget {}\n", request.device.name, format_bytes(request.budget_bytes));
  fmt::print(out, "memory    live peak {}, reserved {} without a limit: {}\n",
             format_bytes(whole.live_peak_bytes), format_bytes(whole.reserved_bytes),
             fits ? "fits" : "does not fit");
  if (bounded.failure) fmt::print(out, "dies      {}\n", describe(*bounded.failure));
  fmt::print(out, "context   {} {} tokens fit\n\n", max_context + kContextUnit > most ? "at least" : "up to",
             format_count(max_context));
  Table stages({"stage", "live", "peak"});
  for (const StageUsage& row : whole.stages) {
    if (in_short(row.stage))
      stages.add({row.stage, format_bytes(row.live_bytes), format_bytes(row.peak_bytes)});
  }
  out << stages.text();
  return fits;
}

bool plan_ring_softmax(RingPlan plan, std::ostream& out) {
  struct Form {
    RingSoftmax::Variant variant;
    std::string_view name;
  };
  constexpr std::array kForms = {Form{RingSoftmax::Variant::as_written, "as written"},
                                 Form{RingSoftmax::Variant::in_place, "in place"},
                                 Form{RingSoftmax::Variant::chunked, "in chunks"}};
  Table table({"chunk function", "live peak", "reserved", "in the budget"});
  Json rows = Json::array();
  bool all_fit = true;
  for (const Form& form : kForms) {
    plan.ring.variant = form.variant;
    const Ledger ledger = rehearse_ring_softmax(plan.ring, plan.device);
    const EagerMemory whole = eager_memory(ledger);
    const EagerMemory bounded = eager_memory(ledger, plan.budget_bytes);
    all_fit = all_fit && !bounded.failure;
    table.add({std::string(form.name), format_bytes(whole.live_peak_bytes),
               format_bytes(whole.reserved_bytes),
               bounded.failure ? "dies: " + describe(*bounded.failure) : std::string("fits")});
    rows.push_back({{"variant", form.name},
                    {"live_peak_bytes", whole.live_peak_bytes},
                    {"reserved_bytes", whole.reserved_bytes},
                    {"failure", to_json(bounded.failure)}});
  }
  if (plan.json) {
    print_json({{"program", "ring-softmax"}, {"budget_bytes", plan.budget_bytes}, {"rows", rows}}, out);
  } else {
    fmt::print(out, "online softmax of one ring step, {} queries x {} keys, {} heads, {}; budget {}\n\n",
               format_count(plan.ring.seq_q), format_count(plan.ring.seq_k), plan.ring.heads,
               name(plan.ring.dtype), format_bytes(plan.budget_bytes));
    out << table.text();
  }
  return all_fit;
}

}  // namespace headroom
