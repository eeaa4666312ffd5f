// On a device whose main stream is late the trainer gives the same numbers: it waits before the host reads.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "headroom/train.h"
#include "memory/late_backend.h"
#include "model/small_models.h"

namespace headroom {
namespace {

Trainer make_trainer(bool offload_optimizer) {
  ModelConfig config = small_model(true, true);
  config.layers = 2;
  config.vocab = 67;
  const Strategy strategy{.layers = {.keep_attention = 1, .recompute = 1},
                          .offload_optimizer = offload_optimizer,
                          .compute_dtype = DType::bf16};
  return {Decoder(config, strategy, {.batch = 2, .seq = 35}, {.causal = true}),
          {.learning_rate = 1e-2, .steps = 3}};
}

// Every phase, rehearsed.
Layout layout_of(const Backend& backend, bool offload_optimizer) {
  Context phantom(backend.description());
  Trainer trainer = make_trainer(offload_optimizer);
  trainer.load(phantom, [&] { trainer.initialize(phantom, 7); });
  const LossSum loss = trainer.micro_step(phantom, {});
  static_cast<void>(trainer.update(phantom, 1, loss.labels));
  static_cast<void>(trainer.evaluate(phantom, {}));
  trainer.save(phantom, {});
  return make_layout(std::move(phantom).take_ledger());
}

// The losses and norms of three steps, and the bytes of the weights and of the optimizer's state after them.
struct Outcome {
  std::vector<double> values;
  std::vector<std::byte> state;
};

Outcome three_steps(Backend& backend, bool offload_optimizer) {
  Context context(backend, layout_of(backend, offload_optimizer));
  Trainer trainer = make_trainer(offload_optimizer);
  trainer.load(context, [&] { trainer.initialize(context, 7); });
  Outcome outcome;
  for (std::int64_t step = 1; step <= 3; ++step) {
    const HostBatch batch =
        random_batch(trainer.decoder().config(), trainer.decoder().sizes(), static_cast<std::uint64_t>(step));
    const auto fill = [&](const StepBatch& views) { batch.copy_to(views); };
    const LossSum loss = trainer.micro_step(context, fill);
    outcome.values.push_back(loss.sum);
    outcome.values.push_back(trainer.update(context, step, loss.labels));
    outcome.values.push_back(trainer.evaluate(context, fill).sum);
  }
  trainer.save(context, [&] {
    const TrainBuffers buffers = trainer.buffers();
    for (const TensorView& view :
         {buffers.weights, buffers.master, buffers.first_moment, buffers.second_moment}) {
      const auto* data = static_cast<const std::byte*>(view.raw());
      outcome.state.insert(outcome.state.end(), data, data + view.bytes());
    }
  });
  return outcome;
}

TEST(LateMain, LossesNormsAndStateAreThoseOfADeviceThatIsNot) {
  for (const bool offload_optimizer : {false, true}) {
    CpuBackend cpu(2);
    LateBackend late(2);
    const Outcome expected = three_steps(cpu, offload_optimizer);
    const Outcome outcome = three_steps(late, offload_optimizer);
    EXPECT_EQ(outcome.values, expected.values) << offload_optimizer;
    EXPECT_EQ(outcome.state, expected.state) << offload_optimizer;
  }
}

TEST(LateMain, LoadAndSaveCallTheirBodiesWhenNothingIsOnItsWay) {
  LateBackend backend(1);
  constexpr std::int64_t kBytes = sizeof(std::int32_t);
  auto* number = static_cast<std::int32_t*>(backend.reserve(Space::host, kBytes));
  const auto send = [&](std::int32_t value) { backend.copy(StreamId::main, number, &value, kBytes); };
  {
    Context context(backend, layout_of(backend, true));
    Trainer trainer = make_trainer(true);
    *number = 0;
    send(1);
    EXPECT_EQ(*number, 0);  // it is late
    trainer.load(context, [&] {
      EXPECT_EQ(*number, 1);
      trainer.initialize(context, 7);
    });
    send(2);
    bool saved = false;
    trainer.save(context, [&] {
      EXPECT_EQ(*number, 2);
      saved = true;
    });
    EXPECT_TRUE(saved);
  }
  backend.release(Space::host, number, kBytes);
}

}  // namespace
}  // namespace headroom
