// On a device whose main stream is late and whose memory the host reaches by copies alone, as it is with a
// GPU, the trainer gives the same numbers: data passes through staging, and the host waits before it reads or
// writes what a stream works on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/temporary_folder.h"
#include "headroom/train.h"
#include "memory/late_backend.h"
#include "model/small_models.h"

namespace headroom {
namespace {

struct Variant {
  bool offload_optimizer = false;
  bool offload_inputs = false;
};

Trainer make_trainer(const Variant& variant) {
  ModelConfig config = small_model(true, true);
  config.layers = 2;
  config.vocab = 67;
  const Strategy strategy{.layers = variant.offload_inputs ? LayerPolicy{.offload = 2}
                                                           : LayerPolicy{.keep_attention = 1, .recompute = 1},
                          .offload_optimizer = variant.offload_optimizer,
                          .compute_dtype = DType::bf16};
  return {Decoder(config, strategy, {.batch = 2, .context = 35}, {.causal = true}),
          {.learning_rate = 1e-2, .steps = 3}};
}

// Every phase, rehearsed.
Layout layout_of(const Backend& backend, const Variant& variant) {
  Context phantom(backend.description());
  Trainer trainer = make_trainer(variant);
  trainer.load(phantom, [&](Staging&) { trainer.initialize(phantom, 7); });
  const LossSum loss = trainer.micro_step(phantom, {});
  static_cast<void>(trainer.update(phantom, 1, loss.labels));
  static_cast<void>(trainer.evaluate(phantom, {}));
  trainer.save(phantom, {});
  return make_layout(std::move(phantom).take_ledger());
}

std::vector<std::byte> state_of(Context& context, Trainer& trainer) {
  std::vector<std::byte> state;
  trainer.save(context, [&](Staging& staging) {
    const TrainBuffers buffers = trainer.buffers();
    for (const Tensor* tensor :
         {&buffers.weights, &buffers.master, &buffers.first_moment, &buffers.second_moment}) {
      staging.download({*tensor, 0, tensor->view().elements()},
                       [&](std::span<const std::byte> piece, std::int64_t) {
                         state.insert(state.end(), piece.begin(), piece.end());
                       });
    }
  });
  return state;
}

// The losses and norms of three steps, and the bytes of the weights and of the optimizer's state after them.
struct Outcome {
  std::vector<double> values;
  std::vector<std::byte> state;
};

Outcome three_steps(Backend& backend, const Variant& variant) {
  Context context(backend, layout_of(backend, variant));
  Trainer trainer = make_trainer(variant);
  trainer.load(context, [&](Staging&) { trainer.initialize(context, 7); });
  Outcome outcome;
  for (std::int64_t step = 1; step <= 3; ++step) {
    LossSum loss;
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const HostBatch batch = random_batch(trainer.decoder().config(), trainer.decoder().sizes(),
                                           static_cast<std::uint64_t>(2 * step + micro));
      const auto fill = [&](const Samples& views) { batch.copy_to(views); };
      loss += trainer.micro_step(context, fill);
      outcome.values.push_back(loss.sum);
      outcome.values.push_back(trainer.evaluate(context, fill).sum);
    }
    outcome.values.push_back(trainer.update(context, step, loss.labels));
  }
  outcome.state = state_of(context, trainer);
  return outcome;
}

constexpr Variant kVariants[] = {{}, {.offload_optimizer = true}, {.offload_inputs = true}, {true, true}};

TEST(LateMain, LossesNormsAndStateAreThoseOfADeviceThatIsNot) {
  for (const Variant& variant : kVariants) {
    CpuBackend cpu(2);
    LateBackend late(2);
    LateBackend apart(LateBackend::apart(2));
    const Outcome expected = three_steps(cpu, variant);
    for (LateBackend* backend : {&late, &apart}) {
      const Outcome outcome = three_steps(*backend, variant);
      EXPECT_EQ(outcome.values, expected.values) << variant.offload_optimizer << variant.offload_inputs;
      EXPECT_TRUE(outcome.state == expected.state) << variant.offload_optimizer << variant.offload_inputs;
      EXPECT_GT(backend->host_copies(), 0);
    }
  }
}

TEST(LateMain, CheckpointsPassThroughStaging) {
  for (const Variant& variant : kVariants) {
    const TemporaryFolder folder;
    CpuBackend cpu(2);
    LateBackend apart(LateBackend::apart(2));
    const TrainState state{.step = 5, .settings = {}};
    std::vector<std::byte> saved;
    std::filesystem::path checkpoint;
    {
      Context context(apart, layout_of(apart, variant));
      Trainer trainer = make_trainer(variant);
      trainer.load(context, [&](Staging&) { trainer.initialize(context, 7); });
      trainer.save(context, [&](Staging& staging) {
        checkpoint =
            write_checkpoint(folder.path(), trainer.decoder().config(), state, trainer.buffers(), staging);
      });
      saved = state_of(context, trainer);
    }
    // Into a device of either kind.
    for (Backend* backend : {static_cast<Backend*>(&cpu), static_cast<Backend*>(&apart)}) {
      Context context(*backend, layout_of(*backend, variant));
      Trainer trainer = make_trainer(variant);
      trainer.load(context, [&](Staging& staging) {
        trainer.initialize(context, 8);
        EXPECT_EQ(read_checkpoint(checkpoint, trainer.decoder().config(), trainer.buffers(), staging), state);
      });
      EXPECT_TRUE(state_of(context, trainer) == saved);
    }
  }
}

// Each piece of staging is in the plan, and nothing else is: the host's memory is as large as planned.
TEST(LateMain, StagingIsPlanned) {
  LateBackend apart(LateBackend::apart(2));
  const Layout layout = layout_of(apart, {});
  const std::int64_t flat_bytes = 4 * make_trainer({}).decoder().parameters().elements();
  const CategoryBytes& peak = layout.rehearsal.usage(Space::host).peak;
  EXPECT_GE(peak[static_cast<std::size_t>(Category::staging)],
            2 * std::min(flat_bytes, Staging::kPieceBytes));
  Context context(apart, layout);
  EXPECT_EQ(apart.reserved_bytes(Space::host), layout.reserved(Space::host));
}

// The host waits for one record in a phase: no event waits for all streams.
TEST(LateMain, AMicroStepWaitsOnTheHostOnce) {
  for (const Variant& variant : kVariants) {
    CpuBackend cpu(2);
    const Layout layout = layout_of(cpu, variant);
    const auto phase = layout.rehearsal.find_phase(Phase::micro_step);
    ASSERT_TRUE(phase.has_value());
    const std::vector<Event>& events = layout.rehearsal.phases()[*phase].events;
    const auto waits = std::ranges::count(events, EventKind::wait_on_host, &Event::kind);
    EXPECT_EQ(waits, variant.offload_inputs ? 2 : 1);  // also before the inputs' memory is freed
  }
}

}  // namespace
}  // namespace headroom
