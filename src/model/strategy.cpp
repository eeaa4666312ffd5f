#include "headroom/model/strategy.h"

#include "headroom/core/error.h"

namespace headroom {

std::string_view name(StatePrecision state) {
  switch (state) {
    case StatePrecision::f32: return "f32";
    case StatePrecision::bf16: return "bf16";
    case StatePrecision::eight_bit: return "8bit";
  }
  return {};
}

StatePrecision parse_state(std::string_view text) {
  for (const StatePrecision state : {StatePrecision::f32, StatePrecision::bf16, StatePrecision::eight_bit}) {
    if (text == name(state)) return state;
  }
  fail(ErrorKind::input, "state '{}' is unknown; accepted: f32, bf16, 8bit", text);
}

std::string_view name(Sharding sharding) {
  switch (sharding) {
    case Sharding::none: return "none";
    case Sharding::optimizer: return "optimizer";
    case Sharding::full: return "full";
  }
  return {};
}

Sharding parse_sharding(std::string_view text) {
  for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
    if (text == name(sharding)) return sharding;
  }
  fail(ErrorKind::input, "sharding '{}' is unknown; accepted: none, optimizer, full", text);
}

std::string_view name(LossRanks ranks) {
  switch (ranks) {
    case LossRanks::tokens: return "tokens";
    case LossRanks::vocabulary: return "vocabulary";
  }
  return {};
}

LossRanks parse_loss_ranks(std::string_view text) {
  for (const LossRanks ranks : {LossRanks::tokens, LossRanks::vocabulary}) {
    if (text == name(ranks)) return ranks;
  }
  fail(ErrorKind::input, "'{}' is not a way in which ranks share the loss; accepted: tokens, vocabulary",
       text);
}

void check_state(StatePrecision state, DType weights) {
  check(state == StatePrecision::f32 || weights == DType::bf16,
        "state {} trains bf16 weights and no others, and these are {}; use --dtype bf16 with it, or --state "
        "f32",
        name(state), name(weights));
}

void validate(const Strategy& strategy, std::int64_t layers) {
  const LayerPolicy& policy = strategy.layers;
  for (const std::int64_t count :
       {policy.keep_all, policy.keep_attention, policy.recompute, policy.offload}) {
    check(count >= 0 && count <= layers, "a policy for {} layers of a model of {} is impossible", count,
          layers);
  }
  const std::int64_t covered = policy.keep_all + policy.keep_attention + policy.recompute + policy.offload;
  check(covered == layers, "the layer policy covers {} layers, the model has {}", covered, layers);
  check(policy.input_every >= 1, "input_every {} has to be at least 1", policy.input_every);
  check(strategy.loss_chunk_tokens >= 0 && strategy.loss_chunk_vocab >= 0 && strategy.mlp_tile_tokens >= 0,
        "chunks of {} tokens, {} words, {} MLP tokens: none may be negative", strategy.loss_chunk_tokens,
        strategy.loss_chunk_vocab, strategy.mlp_tile_tokens);
  check(strategy.accumulation >= 1, "accumulation {} has to be at least 1", strategy.accumulation);
  constexpr std::int64_t kMostRanks = 1024;
  check(strategy.ring_ranks >= 1 && strategy.ring_ranks <= kMostRanks,
        "{} ranks cannot divide a sequence; accepted: 1 to {}", strategy.ring_ranks, kMostRanks);
  check(strategy.data_ranks >= 1 && strategy.ring_ranks * strategy.data_ranks <= kMostRanks,
        "{} groups of {} ranks are not 1 to {} ranks", strategy.data_ranks, strategy.ring_ranks, kMostRanks);
  check(strategy.head_group >= 1 && strategy.ring_ranks % strategy.head_group == 0,
        "{} ranks have no groups of {} that divide heads", strategy.ring_ranks, strategy.head_group);
  check(strategy.sharding == Sharding::none || strategy.ranks() > 1,
        "sharding '{}' divides state over ranks, and there is one; accepted: none, or two ranks and more",
        name(strategy.sharding));
  check(strategy.loss_ranks == LossRanks::tokens || strategy.ranks() > 1,
        "the loss divides the vocabulary over ranks, and there is one; accepted: tokens, or two ranks and "
        "more");
  check(strategy.loss_ranks == LossRanks::tokens || strategy.loss_chunk_vocab == 0,
        "a divided vocabulary is not cut into chunks of {} words; accepted: 0", strategy.loss_chunk_vocab);
  check_state(strategy.state, strategy.compute_dtype);
}

}  // namespace headroom
