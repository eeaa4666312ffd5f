#include "headroom/train/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/loss.h"

namespace headroom {
namespace {

std::int64_t needed(const Layout& layout) {
  return layout.reserved(Space::device) + layout.reserved(Space::host);
}

}  // namespace

void validate(const TrainingProblem& problem) {
  const StepSizes& sizes = problem.sizes;
  check(sizes.batch >= 1 && sizes.context >= 1 && problem.accumulation >= 1,
        "batch {}, context {} and accumulation {} have to be at least 1", sizes.batch, sizes.context,
        problem.accumulation);
  check_state(problem.state, problem.compute_dtype);
  std::int64_t tokens = 0;
  check(!__builtin_mul_overflow(sizes.batch, sizes.context, &tokens) &&
            !__builtin_mul_overflow(tokens, problem.accumulation, &tokens),
        "batch {} x context {} x accumulation {} is a step of 2^63 tokens or more", sizes.batch,
        sizes.context, problem.accumulation);
}

std::int64_t step_tokens(const TrainingProblem& problem) {
  validate(problem);
  return problem.sizes.batch * problem.sizes.context * problem.accumulation;
}

LossProblem loss_problem(const TrainingProblem& problem) {
  return {.tokens = problem.sizes.batch * problem.sizes.context,
          .hidden = problem.config.hidden,
          .vocab = problem.config.vocab,
          .dtype = problem.compute_dtype};
}

AttentionProblem attention_problem(const TrainingProblem& problem, const Mask& mask) {
  return {.batch = problem.sizes.batch,
          .seq_q = problem.sizes.context,
          .seq_k = problem.sizes.context,
          .heads_q = problem.config.heads_q,
          .heads_kv = problem.config.heads_kv,
          .head_dim = problem.config.head_dim,
          .dtype = problem.compute_dtype,
          .mask = mask};
}

namespace {

std::int64_t pairs_of_pass(const RingSchedule& schedule, int member) {
  std::int64_t pairs = std::ssize(schedule.local(member));
  for (std::int64_t slot = 0; slot < schedule.slots(); ++slot) {
    const Transfer* transfer = schedule.received(member, slot);
    if (transfer != nullptr) pairs += std::ssize(transfer->pairs);
  }
  return pairs;
}

enum class Rehearsed : std::uint8_t { all_phases, up_to_micro_step };

TrainingRehearsal rehearse(const TrainingProblem& problem, const Strategy& strategy,
                           const DeviceDescription& device, int rank, std::optional<int> sampled_rank,
                           Rehearsed phases) {
  validate(problem);
  TrainingRehearsal rehearsal;
  Context context(device, {.rank = rank, .count = static_cast<int>(strategy.ranks())},
                  sampled_rank ? NotedMessages::sampled : NotedMessages::all);
  {
    Decoder decoder(problem.config, strategy, problem.sizes, problem.mask, sampled_rank);
    for (std::int64_t layer = 0; layer < problem.config.layers; ++layer) {
      if (const ParallelSchedule* schedule = decoder.schedule(layer)) {
        rehearsal.pass_pairs[static_cast<std::size_t>(layer_spec(problem.config, layer).attention)] =
            pairs_of_pass(schedule->ring(), rank % schedule->ranks() / schedule->group());
      }
    }
    Trainer trainer(std::move(decoder), problem.optimizer);
    const bool updates = problem.optimizer.kind != OptimizerKind::none;
    trainer.load(context, [&](Staging&) {
      if (updates) trainer.initialize(context, 0);
    });
    const LossSum loss = trainer.micro_step(context, {});
    if (phases == Rehearsed::all_phases) {
      if (updates) trainer.update(context, 1, loss.labels);
      trainer.evaluate(context, {});
      trainer.save(context, {});
      if (trainer.divides_state()) trainer.save_divided(context, {});
    }
  }
  const auto work = [&](Phase phase) {
    const auto records = context.work(phase);
    return std::vector<WorkRecord>(records.begin(), records.end());
  };
  rehearsal.micro_step = work(Phase::micro_step);
  rehearsal.update = work(Phase::update);
  rehearsal.ledger = std::move(context).take_ledger();
  return rehearsal;
}

}  // namespace

TrainingRehearsal rehearse(const TrainingProblem& problem, const Strategy& strategy,
                           const DeviceDescription& device, int rank) {
  return rehearse(problem, strategy, device, rank, std::nullopt, Rehearsed::all_phases);
}

TrainingRehearsal rehearse_memory(const TrainingProblem& problem, const Strategy& strategy,
                                  const DeviceDescription& device, int rank) {
  return rehearse(problem, strategy, device, rank, rank, Rehearsed::all_phases);
}

TrainingRehearsal rehearse_micro_step(const TrainingProblem& problem, const Strategy& strategy,
                                      const DeviceDescription& device, int rank) {
  return rehearse(problem, strategy, device, rank, rank, Rehearsed::up_to_micro_step);
}

std::vector<AssumedKernel> assumed_kernels(const TrainingRehearsal& rehearsal) {
  std::vector<AssumedKernel> kernels;
  for (const auto* records : {&rehearsal.micro_step, &rehearsal.update}) {
    for (const WorkRecord& record : *records) {
      if (!record.work.assumed) continue;
      auto known = std::ranges::find(kernels, record.work.kernel, &AssumedKernel::kernel);
      if (known == kernels.end()) known = kernels.insert(known, {.kernel = record.work.kernel});
      known->workspace_bytes = std::max(known->workspace_bytes, record.work.workspace_bytes);
    }
  }
  return kernels;
}

Layout rehearse_training(const TrainingProblem& problem, const Strategy& strategy,
                         const DeviceDescription& device, int rank) {
  return make_layout(rehearse(problem, strategy, device, rank).ledger);
}

std::string describe(const Strategy& strategy) {
  const LayerPolicy& policy = strategy.layers;
  std::string text;
  const auto say = [&](std::int64_t layers, std::string_view what) {
    if (layers == 0) return;
    text +=
        fmt::format("{}{} {} {}", text.empty() ? "" : ", ", layers, layers == 1 ? "layer:" : "layers:", what);
  };
  say(policy.keep_all, "keep everything");
  say(policy.keep_attention, "keep attention, recompute the rest");
  say(policy.recompute, policy.input_every == 1 ? "recompute from the input"
                                                : fmt::format("recompute from every {} input",
                                                              format_ordinal(policy.input_every)));
  say(policy.offload, "offload the input");
  const std::string words = strategy.loss_chunk_vocab == 0
                                ? std::string()
                                : fmt::format(" x {} words", format_count(strategy.loss_chunk_vocab));
  const std::string_view divided =
      strategy.loss_ranks == LossRanks::vocabulary ? " of all ranks, which divide the vocabulary" : "";
  return fmt::format("{}; loss in chunks of {} tokens{}{}, MLP in tiles of {}{}{}", text,
                     format_count(strategy.loss_chunk_tokens), divided, words,
                     format_count(strategy.mlp_tile_tokens),
                     strategy.projections_again ? "; projections made again" : "",
                     strategy.offload_optimizer ? "; optimizer on the host" : "");
}

std::string describe_ranks(const Strategy& strategy) {
  std::string text = format_count(strategy.ranks());
  if (strategy.data_ranks > 1)
    text += fmt::format(" in {} groups that divide the batch", strategy.data_ranks);
  if (strategy.ring_ranks > 1) {
    text += strategy.data_ranks == 1
                ? " divide every sequence"
                : fmt::format(", {} of which divide every sequence", strategy.ring_ranks);
  }
  switch (strategy.sharding) {
    case Sharding::none: break;
    case Sharding::optimizer: text += "; all divide the optimizer's state"; break;
    case Sharding::full: text += "; all divide weights, gradients and the optimizer's state"; break;
  }
  return text;
}

std::int64_t naive_training_bytes(const TrainingProblem& problem, const DeviceDescription& device) {
  const Strategy everything{.layers = {.keep_all = problem.config.layers},
                            .loss_chunk_tokens = 1,
                            .loss_chunk_vocab = device.kind == DeviceKind::cpu ? 1 : 0,
                            .compute_dtype = problem.compute_dtype,
                            .state = problem.state};
  std::int64_t bytes = needed(rehearse_training(problem, everything, device));
  const LossProblem loss = loss_problem(problem);
  for (const LossImplementation& row : loss_implementations()) {
    if (row.name == "standard") bytes = checked_add(bytes, row.saved_bytes(loss));
  }
  const Decoder decoder(problem.config, everything, problem.sizes, problem.mask);
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.name != "naive") continue;
    for (std::int64_t layer = 0; layer < problem.config.layers; ++layer) {
      bytes = checked_add(bytes, row.saved_bytes(attention_problem(problem, decoder.layer_mask(layer))));
    }
  }
  return bytes;
}

}  // namespace headroom
