#include "headroom/model/strategy.h"

#include "headroom/core/error.h"

namespace headroom {

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
  check(strategy.ring_ranks >= 1, "{} ring ranks are impossible", strategy.ring_ranks);
  check(strategy.master_dtype == DType::f32, "master weights are f32, not {}", name(strategy.master_dtype));
}

}  // namespace headroom
