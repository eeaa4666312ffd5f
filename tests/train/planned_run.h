// One run of every phase of training, rehearsed and then done: what was planned is what happens, to the byte.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "headroom/cpu.h"
#include "headroom/train.h"
#include "model/small_models.h"

namespace headroom {

// What a training step can vary.
struct Combination {
  ModelConfig config;
  StepSizes sizes;
  LayerPolicy layers;
  std::string mask = "causal";
  DType dtype = DType::f32;
  std::int64_t accumulation = 1;
  std::int64_t loss_chunk = 0;
  std::int64_t mlp_tile = 0;
  bool offload_optimizer = false;
};

inline std::string to_string(const Combination& c) {
  const ModelConfig& m = c.config;
  return fmt::format(
      "{}, {} layers, hidden {}, heads {}/{} of {}, mlp {}, vocab {}{}; keep {} attention {} recompute {} "
      "every {} offload {}; batch {} x {} tokens x {}, documents {}; {} {}; loss {}, MLP {}{}",
      name(m.family), m.layers, m.hidden, m.heads_q, m.heads_kv, m.head_dim, m.mlp, m.vocab,
      m.tied_embeddings ? " tied" : "", c.layers.keep_all, c.layers.keep_attention, c.layers.recompute,
      c.layers.input_every, c.layers.offload, c.sizes.batch, c.sizes.context, c.accumulation,
      c.sizes.max_documents, c.mask, name(c.dtype), c.loss_chunk, c.mlp_tile,
      c.offload_optimizer ? ", optimizer on the host" : "");
}

inline TrainingProblem problem_of(const Combination& c) {
  return {.config = c.config,
          .sizes = c.sizes,
          .mask = parse_mask(c.mask),
          .optimizer = {},
          .compute_dtype = c.dtype,
          .accumulation = c.accumulation};
}

inline Strategy strategy_of(const Combination& c) {
  return {.layers = c.layers,
          .loss_chunk_tokens = c.loss_chunk,
          .mlp_tile_tokens = c.mlp_tile,
          .offload_optimizer = c.offload_optimizer,
          .compute_dtype = c.dtype};
}

// Random tokens, and in every row documents of different lengths, some of them empty where tokens are few.
inline HostBatch batch_of(const Combination& c) {
  HostBatch batch = random_batch(c.config, c.sizes);
  const std::int64_t documents = c.sizes.max_documents;
  for (std::int64_t row = 0; documents > 0 && row < c.sizes.batch; ++row) {
    for (std::int64_t i = 0; i <= documents; ++i)
      batch.document_starts.push_back(
          static_cast<std::int32_t>(c.sizes.context * i * i / (documents * documents)));
  }
  return batch;
}

// The bytes of both arenas; fails the test where run and rehearsal differ.
inline std::int64_t run_as_planned(const Combination& c) {
  const TrainingProblem problem = problem_of(c);
  const Strategy strategy = strategy_of(c);
  CpuBackend backend(2);
  const Layout layout = rehearse_training(problem, strategy, backend.description());
  const HostBatch batch = batch_of(c);
  const auto fill = [&](const Samples& views) { batch.copy_to(views); };
  Context context(backend, layout);
  Trainer trainer(Decoder(problem.config, strategy, problem.sizes, problem.mask), problem.optimizer);
  trainer.load(context, [&](Staging&) { trainer.initialize(context, 1); });
  LossSum loss;
  for (std::int64_t i = 0; i < c.accumulation; ++i) loss += trainer.micro_step(context, fill);
  EXPECT_TRUE(std::isfinite(loss.sum));
  EXPECT_TRUE(std::isfinite(trainer.update(context, 1, loss.labels)));
  EXPECT_TRUE(std::isfinite(trainer.evaluate(context, fill).sum));
  trainer.save(context, [](Staging&) {});
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(context.ledger().usage(space).peak_bytes, layout.rehearsal.usage(space).peak_bytes);
    EXPECT_EQ(backend.reserved_bytes(space), layout.reserved(space));
    EXPECT_GE(layout.reserved(space), layout.rehearsal.usage(space).peak_bytes);
  }
  const auto planned = layout.rehearsal.phases();
  const auto happened = context.ledger().phases();
  EXPECT_EQ(happened.size(), planned.size());
  for (std::size_t i = 0; i < std::min(happened.size(), planned.size()); ++i)
    EXPECT_EQ(happened[i].events, planned[i].events);
  return layout.reserved(Space::device) + layout.reserved(Space::host);
}

}  // namespace headroom
