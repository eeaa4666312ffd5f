#include "headroom/train/trainer.h"
#include "core/temporary_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "headroom/comm.h"
#include "headroom/core/elements.h"
#include "headroom/train.h"
#include "model/small_models.h"

namespace headroom {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

ModelConfig tiny_model() {
  ModelConfig config = small_model(true, true);
  config.layers = 2;
  config.vocab = 67;
  return config;
}

// A trainer that was rehearsed and loaded, at step 0.
class TrainingRun {
 public:
  explicit TrainingRun(const OptimizerSettings& optimizer, DType dtype = DType::f32, std::int64_t batch = 2,
                       bool offload_optimizer = false, Communicator* communicator = nullptr,
                       StatePrecision state = StatePrecision::f32)
      : trainer_(make(optimizer, dtype, batch, offload_optimizer, state, ranks_of(communicator))) {
    Context phantom(backend_.description(), ranks_of(communicator));
    Trainer rehearsed = make(optimizer, dtype, batch, offload_optimizer, state, ranks_of(communicator));
    rehearsed.load(phantom, [&](Staging&) { rehearsed.initialize(phantom, 7); });
    const LossSum loss = rehearsed.micro_step(phantom, {});
    static_cast<void>(rehearsed.update(phantom, 1, loss.labels));
    static_cast<void>(rehearsed.evaluate(phantom, {}));
    rehearsed.save(phantom, {});
    context_.emplace(backend_, make_layout(phantom.ledger()), communicator);
    trainer_.load(*context_, [&](Staging&) { trainer_.initialize(*context_, 7); });
  }

  Trainer& trainer() { return trainer_; }
  [[nodiscard]] const Trainer& trainer() const { return trainer_; }
  // The mean loss of the batch; nothing where it has no label.
  std::optional<double> micro_step(const HostBatch& batch) {
    const LossSum loss = trainer_.micro_step(*context_, [&](const Samples& views) { batch.copy_to(views); });
    step_loss_ += loss;
    return loss.mean();
  }
  LossSum micro_step(const Trainer::FillBatch& fill) { return trainer_.micro_step(*context_, fill); }
  std::optional<double> evaluate(const HostBatch& batch) {
    return trainer_.evaluate(*context_, [&](const Samples& views) { batch.copy_to(views); }).mean();
  }
  void with_staging(const Trainer::HostWork& work) { trainer_.save(*context_, work); }
  // Of the micro-steps since the last update.
  [[nodiscard]] const LossSum& step_loss() const { return step_loss_; }
  double update(std::int64_t step) {
    return trainer_.update(*context_, step, std::exchange(step_loss_, {}).labels);
  }
  [[nodiscard]] HostBatch batch(std::uint64_t seed) const {
    return random_batch(trainer_.decoder().config(), trainer_.decoder().sizes(), seed);
  }

  // Everything that the next step depends on, as bytes.
  [[nodiscard]] std::vector<std::vector<std::byte>> state() const {
    const TrainBuffers buffers = trainer_.buffers();
    std::vector<std::vector<std::byte>> bytes;
    for (const TensorView& view :
         {buffers.weights.view(), buffers.master.view(), buffers.first_moment.view(),
          buffers.second_moment.view(), buffers.first_exponents.view(), buffers.second_exponents.view()}) {
      const auto* data = static_cast<const std::byte*>(view.raw());
      bytes.emplace_back(data, data + view.bytes());
    }
    return bytes;
  }
  // Of the mean loss since the last update.
  [[nodiscard]] std::vector<float> gradients() const {
    const TensorView view = trainer_.gradients();
    std::vector<float> result(view.data<float>(), view.data<float>() + view.elements());
    if (step_loss_.labels == 0) return result;
    const double scale = trainer_.gradient_scale(step_loss_.labels);
    for (float& gradient : result) gradient = static_cast<float>(scale * gradient);
    return result;
  }

 private:
  static Ranks ranks_of(const Communicator* communicator) {
    return communicator == nullptr ? Ranks{} : communicator->ranks();
  }
  static Trainer make(const OptimizerSettings& optimizer, DType dtype, std::int64_t batch,
                      bool offload_optimizer, StatePrecision state, const Ranks& ranks) {
    const Strategy strategy{.layers = {.keep_attention = 1, .recompute = 1},
                            .offload_optimizer = offload_optimizer,
                            .data_ranks = ranks.count,
                            .compute_dtype = dtype,
                            .state = state};
    return {Decoder(tiny_model(), strategy, {.batch = batch, .context = 35}, {.causal = true}), optimizer};
  }

  CpuBackend backend_{2};
  std::optional<Context> context_;
  Trainer trainer_;
  LossSum step_loss_;
};

// Every precision that a run can have.
struct Precision {
  DType dtype;
  StatePrecision state;

  [[nodiscard]] std::string text() const { return fmt::format("{}, state {}", name(dtype), name(state)); }
};
constexpr Precision kPrecisions[] = {{DType::f32, StatePrecision::f32},
                                     {DType::bf16, StatePrecision::f32},
                                     {DType::bf16, StatePrecision::bf16},
                                     {DType::bf16, StatePrecision::eight_bit}};

TrainingRun run_of(const Precision& precision, const OptimizerSettings& optimizer, bool offload = false) {
  return TrainingRun(optimizer, precision.dtype, 2, offload, nullptr, precision.state);
}

// One row of a batch of rows of 35.
HostBatch row_of(const HostBatch& batch, std::ptrdiff_t row) {
  const auto part = [&](const std::vector<std::int32_t>& values) {
    return std::vector<std::int32_t>(values.begin() + 35 * row, values.begin() + 35 * (row + 1));
  };
  return {part(batch.tokens), part(batch.labels), part(batch.positions), {}};
}

HostBatch without_labels(HostBatch batch) {
  std::ranges::fill(batch.labels, kIgnore);
  return batch;
}

TEST(LearningRate, RisesInALineAndFallsAsHalfACosine) {
  const OptimizerSettings settings{.learning_rate = 2, .final_fraction = 0.1, .warmup_steps = 4, .steps = 14};
  EXPECT_DOUBLE_EQ(learning_rate(settings, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 2), 1);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 3), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 4), 2);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 9), 0.2 + 1.8 * 0.5);  // half way
  EXPECT_DOUBLE_EQ(learning_rate(settings, 14), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 20), 0.2);  // a run that goes on stays there
  for (std::int64_t step = 5; step <= 14; ++step) {
    EXPECT_LT(learning_rate(settings, step), learning_rate(settings, step - 1)) << step;
  }
}

TEST(LearningRate, WithoutWarmUpTheFirstStepIsTheHighest) {
  OptimizerSettings settings{.learning_rate = 2, .final_fraction = 0.25, .steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate(settings, 1), 2);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 3), 0.5 + 1.5 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 5), 0.5);
  settings.steps = 1;
  EXPECT_DOUBLE_EQ(learning_rate(settings, 1), 2);
  settings = {.learning_rate = 2, .final_fraction = 0.25, .warmup_steps = 3, .steps = 3};
  EXPECT_DOUBLE_EQ(learning_rate(settings, 3), 2);  // warm-up is all there is
}

TEST(OptimizerSettings, WrongValuesAreRefused) {
  const auto refuses = [](const OptimizerSettings& settings) { EXPECT_THROW(validate(settings), Error); };
  validate(OptimizerSettings{});
  refuses({.learning_rate = -1});
  refuses({.learning_rate = std::nan("")});
  refuses({.final_fraction = 1.5});
  refuses({.warmup_steps = 2, .steps = 1});
  refuses({.steps = 0});
  refuses({.beta1 = 1});  // the bias correction of 1 divides by zero
  refuses({.beta2 = 1});
  refuses({.beta1 = -0.1});
  refuses({.epsilon = 0});
  refuses({.weight_decay = -1});
  refuses({.max_norm = 0});
  refuses({.max_norm = std::nan("")});
}

TEST(Trainer, NoOptimizerHasNoStateToMove) {
  const Strategy strategy{.layers = {.keep_all = 2}, .offload_optimizer = true};
  const Decoder decoder(tiny_model(), strategy, {.batch = 1, .context = 8}, {.causal = true});
  EXPECT_THROW(Trainer(decoder, {.kind = OptimizerKind::none}), Error);
}

// AdamW's first update moves every weight by the learning rate against its gradient's sign, whatever the
// gradient's size: that is what bias correction is for.
TEST(Trainer, TheFirstUpdateMovesByTheLearningRate) {
  TrainingRun run({.learning_rate = 1e-3, .weight_decay = 0, .max_norm = kNone});
  static_cast<void>(run.micro_step(run.batch(1)));
  const std::vector<float> gradients = run.gradients();
  const TensorView view = run.trainer().buffers().weights;
  const std::vector<float> before(view.data<float>(), view.data<float>() + view.elements());
  const double norm = run.update(1);
  double expected_norm = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    expected_norm += std::pow(static_cast<double>(gradients[i]), 2);
    const double moved = static_cast<double>(view.data<float>()[i]) - before[i];
    if (std::abs(gradients[i]) > 1e-4F) {
      EXPECT_NEAR(moved, gradients[i] > 0 ? -1e-3 : 1e-3, 2e-6) << i;
    } else {
      EXPECT_LE(std::abs(moved), gradients[i] == 0 ? 0 : 1.001e-3) << i;
    }
  }
  EXPECT_NEAR(norm, std::sqrt(expected_norm), 1e-6 * norm);
  for (const float gradient : run.gradients()) EXPECT_EQ(gradient, 0);
}

TEST(Trainer, OnlyMatricesDecay) {
  TrainingRun decaying({.learning_rate = 1e-3, .weight_decay = 0.5});
  TrainingRun plain({.learning_rate = 1e-3, .weight_decay = 0});
  const ParameterTable& table = plain.trainer().decoder().parameters();
  const TensorView start = plain.trainer().buffers().weights;
  const std::vector<float> before(start.data<float>(), start.data<float>() + start.elements());
  for (TrainingRun* run : {&decaying, &plain}) {
    static_cast<void>(run->micro_step(run->batch(1)));
    static_cast<void>(run->update(1));
  }
  for (const Parameter& parameter : table.entries()) {
    const auto* with = table.view(decaying.trainer().buffers().weights, parameter).data<float>();
    const auto* without = table.view(plain.trainer().buffers().weights, parameter).data<float>();
    const double decay = parameter.decays ? 1e-3 * 0.5 : 0;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      const double weight = before[static_cast<std::size_t>(parameter.offset + i)];
      EXPECT_NEAR(static_cast<double>(with[i]) - without[i], -decay * weight, 2e-7) << parameter.name;
    }
  }
}

TEST(Trainer, AGradientThatIsNotFiniteChangesNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainingRun run({.learning_rate = 1e-2, .steps = 10}, dtype);
    static_cast<void>(run.micro_step(run.batch(1)));
    static_cast<void>(run.update(1));
    const auto before = run.state();
    for (const float poison :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      static_cast<void>(run.micro_step(run.batch(2)));
      run.trainer().gradients().data<float>()[1234] = poison;
      EXPECT_FALSE(std::isfinite(run.update(2))) << poison;
      EXPECT_EQ(run.state(), before) << poison;
      for (const float gradient : run.gradients()) EXPECT_EQ(gradient, 0);
    }
    // And training goes on as if nothing had been.
    TrainingRun other({.learning_rate = 1e-2, .steps = 10}, dtype);
    static_cast<void>(other.micro_step(other.batch(1)));
    static_cast<void>(other.update(1));
    for (TrainingRun* each : {&run, &other}) {
      static_cast<void>(each->micro_step(each->batch(3)));
      EXPECT_TRUE(std::isfinite(each->update(2)));
    }
    EXPECT_EQ(run.state(), other.state());
    EXPECT_NE(run.state(), before);
  }
}

// The moments after one update are (1 - beta) times the clipped gradient and its square.
TEST(Trainer, ClipsTheNormOfAllGradientsTogether) {
  TrainingRun run({.max_norm = 0.25});
  static_cast<void>(run.micro_step(run.batch(1)));
  const std::vector<float> gradients = run.gradients();
  const double norm = run.update(1);
  ASSERT_GT(norm, 0.5);  // there is something to clip
  const TrainBuffers buffers = run.trainer().buffers();
  double clipped = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double gradient = gradients[i] * 0.25 / (norm + 1e-6);
    clipped += std::pow(buffers.first_moment.data<float>()[i] / 0.1, 2);
    EXPECT_NEAR(buffers.first_moment.data<float>()[i], 0.1 * gradient, 1e-6 * std::abs(gradient));
    EXPECT_NEAR(buffers.second_moment.data<float>()[i], 0.05 * gradient * gradient,
                1e-6 * gradient * gradient);
  }
  EXPECT_NEAR(std::sqrt(clipped), 0.25, 1e-5);
}

// However the labels are shared among them: the same rows in one batch give the same loss and the same
// gradients, up to the order of the sums.
TEST(Trainer, MicroStepsAddUpToTheMeanOverAllTheirLabels) {
  for (const std::ptrdiff_t labels_of_first : {30, 3, 1, 0}) {
    SCOPED_TRACE(labels_of_first);
    const OptimizerSettings optimizer{.weight_decay = 0, .max_norm = 0.25};
    TrainingRun two(optimizer, DType::f32, 1);
    TrainingRun one(optimizer, DType::f32, 2);
    HostBatch both = one.batch(5);  // 35 tokens a row, 5 labels of each do not count
    std::ptrdiff_t left = labels_of_first;
    for (std::size_t i = 0; i < 35; ++i) {
      if (both.labels[i] != kIgnore && left-- <= 0) both.labels[i] = kIgnore;
    }
    for (const std::ptrdiff_t row : {0, 1}) static_cast<void>(two.micro_step(row_of(both, row)));
    const double loss = one.micro_step(both).value();
    EXPECT_EQ(two.step_loss().labels, labels_of_first + 30);
    EXPECT_NEAR(two.step_loss().mean().value(), loss, 1e-6 * loss);
    const WorstDifference worst = worst_difference(tiny_model(), two.gradients(), one.gradients());
    EXPECT_LT(worst.relative, 2e-5) << worst.parameter;
    // And what the update makes of them: the norm that is clipped is that of the mean loss.
    const double norm = one.update(1);
    ASSERT_GT(norm, 0.5);
    EXPECT_NEAR(two.update(1), norm, 1e-5 * norm);
    const auto moments = [](const TrainingRun& run) {
      const TensorView view = run.trainer().buffers().first_moment;
      return std::vector<float>(view.data<float>(), view.data<float>() + view.elements());
    };
    const WorstDifference moved = worst_difference(tiny_model(), moments(two), moments(one));
    EXPECT_LT(moved.relative, 2e-5) << moved.parameter;
  }
}

TEST(Trainer, ABatchWithoutALabelIsPassedOver) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainingRun run({.learning_rate = 1e-2, .steps = 10}, dtype);
    TrainingRun other({.learning_rate = 1e-2, .steps = 10}, dtype);
    const HostBatch empty = without_labels(run.batch(9));
    EXPECT_EQ(run.evaluate(empty), std::nullopt);
    // Between others it adds nothing, to the bit.
    EXPECT_EQ(run.micro_step(empty), std::nullopt);
    EXPECT_EQ(run.micro_step(run.batch(1)), other.micro_step(other.batch(1)));
    EXPECT_EQ(run.micro_step(empty), std::nullopt);
    EXPECT_EQ(run.micro_step(run.batch(2)), other.micro_step(other.batch(2)));
    EXPECT_EQ(run.step_loss().labels, other.step_loss().labels);
    EXPECT_EQ(run.gradients(), other.gradients());
    EXPECT_EQ(run.update(1), other.update(1));
    EXPECT_EQ(run.state(), other.state());
    // A step of such batches alone has no update, and the gradients stay empty whatever the weights are.
    const auto before = run.state();
    EXPECT_EQ(run.micro_step(empty), std::nullopt);
    EXPECT_THROW(static_cast<void>(run.update(2)), Error);
    EXPECT_EQ(run.state(), before);
    const TensorView weights = run.trainer().buffers().weights;
    for (std::int64_t i = 0; i < weights.elements(); ++i)
      write_element(weights, i, std::numeric_limits<float>::infinity());
    EXPECT_EQ(run.micro_step(empty), std::nullopt);
    for (const float gradient : run.gradients()) EXPECT_EQ(gradient, 0);
  }
}

TEST(Trainer, SixteenBitWeightsAreTheMastersRounded) {
  TrainingRun run({.learning_rate = 1e-3, .steps = 10}, DType::bf16);
  const TrainBuffers buffers = run.trainer().buffers();
  bool finer = false;
  for (std::int64_t step = 0; step <= 5; ++step) {
    if (step > 0) {
      static_cast<void>(run.micro_step(run.batch(static_cast<std::uint64_t>(step))));
      static_cast<void>(run.update(step));
    }
    for (std::int64_t i = 0; i < buffers.weights.view().elements(); ++i) {
      const float master = buffers.master.data<float>()[i];
      const auto weight = static_cast<float>(buffers.weights.data<BFloat16>()[i]);
      ASSERT_EQ(weight, static_cast<float>(BFloat16(master))) << "step " << step << ", " << i;
      finer = finer || weight != master;
    }
  }
  EXPECT_TRUE(finer);  // the master knows more than the weight
}

TEST(Trainer, LearnsABatchByHeart) {
  for (const Precision& precision : kPrecisions) {
    SCOPED_TRACE(precision.text());
    TrainingRun run = run_of(precision, {.learning_rate = 1e-2, .warmup_steps = 3, .steps = 30});
    const HostBatch batch = run.batch(1);
    const double first = run.evaluate(batch).value();
    EXPECT_NEAR(first, std::log(67), 1);
    for (std::int64_t step = 1; step <= 30; ++step) {
      const std::optional<double> before = run.evaluate(batch);
      EXPECT_EQ(run.micro_step(batch), before);  // to the bit
      EXPECT_TRUE(std::isfinite(run.update(step)));
    }
    EXPECT_LT(run.evaluate(batch).value(), first / 2);
  }
}

// Its pieces end inside parameters and begin there again.
TEST(Trainer, AnOptimizerOnTheHostGivesTheSameBits) {
  for (const Precision& precision : kPrecisions) {
    SCOPED_TRACE(precision.text());
    const OptimizerSettings optimizer{.learning_rate = 1e-2, .steps = 6};
    TrainingRun device = run_of(precision, optimizer);
    TrainingRun host = run_of(precision, optimizer, true);
    EXPECT_EQ(host.state(), device.state());
    for (std::int64_t step = 1; step <= 6; ++step) {
      for (const std::uint64_t part : {0, 1}) {
        const HostBatch batch = host.batch(static_cast<std::uint64_t>(2 * step) + part);
        EXPECT_EQ(host.micro_step(batch), device.micro_step(batch));
      }
      if (step == 4) {  // an update that changes nothing
        for (TrainingRun* run : {&host, &device})
          write_element(run->trainer().gradients(), 1234, std::numeric_limits<double>::infinity());
      }
      const auto before = host.state();
      const double norm = host.update(step);
      EXPECT_EQ(norm, device.update(step));
      EXPECT_EQ(host.state(), device.state()) << "step " << step;
      EXPECT_EQ(host.state() == before, step == 4);
    }
    EXPECT_EQ(host.evaluate(host.batch(1)), device.evaluate(device.batch(1)));
  }
}

TEST(Trainer, GoesOnFromACheckpointWithTheSameBits) {
  struct Case {
    Precision precision;
    bool from_host = false;  // where the optimizer's state is, before and after
    bool to_host = false;
  };
  std::vector<Case> cases;
  for (const Precision& precision : kPrecisions) {
    for (const bool from : {false, true}) {
      for (const bool to : {false, true}) cases.push_back({precision, from, to});
    }
  }
  for (const auto& [precision, from_host, to_host] : cases) {
    SCOPED_TRACE(fmt::format("{}, on the host {} and {}", precision.text(), from_host, to_host));
    const TemporaryFolder root;
    const OptimizerSettings optimizer{.learning_rate = 1e-2, .warmup_steps = 2, .steps = 10};
    const auto steps = [](TrainingRun& run, std::int64_t first, std::int64_t last) {
      for (std::int64_t step = first; step <= last; ++step) {
        static_cast<void>(run.micro_step(run.batch(static_cast<std::uint64_t>(step))));
        static_cast<void>(run.update(step));
      }
    };
    TrainingRun whole = run_of(precision, optimizer);
    steps(whole, 1, 10);
    TrainingRun first = run_of(precision, optimizer, from_host);
    steps(first, 1, 5);
    const TrainState state{.step = 5, .tokens = 350, .samples = 10, .settings = {{"lr", "0.01"}}};
    std::filesystem::path folder;
    first.with_staging([&](Staging& staging) {
      folder = write_checkpoint(root.path(), tiny_model(), state, first.trainer().buffers(), staging);
    });
    TrainingRun second = run_of(precision, optimizer, to_host);
    EXPECT_NE(second.state(), first.state());
    second.with_staging([&](Staging& staging) {
      EXPECT_EQ(read_checkpoint(folder, tiny_model(), second.trainer().buffers(), staging), state);
    });
    EXPECT_EQ(second.state(), first.state());
    steps(second, 6, 10);
    EXPECT_EQ(second.state(), whole.state());
  }
}

// The three lie on each other, from the same first weights.
TEST(Trainer, EveryStateLearnsAlike) {
  constexpr std::int64_t kSteps = 60;
  std::vector<std::vector<double>> curves;
  for (const StatePrecision state : {StatePrecision::f32, StatePrecision::bf16, StatePrecision::eight_bit}) {
    TrainingRun run =
        run_of({DType::bf16, state}, {.learning_rate = 5e-3, .warmup_steps = 5, .steps = kSteps});
    std::vector<double>& losses = curves.emplace_back();
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      losses.push_back(run.micro_step(run.batch(static_cast<std::uint64_t>(step % 8))).value());
      EXPECT_TRUE(std::isfinite(run.update(step)));
    }
  }
  EXPECT_EQ(curves[1].front(), curves[0].front());
  EXPECT_EQ(curves[2].front(), curves[0].front());
  EXPECT_LT(curves[0].back(), 0.7 * curves[0].front());
  for (std::size_t step = 0; step < curves[0].size(); ++step) {
    EXPECT_NEAR(curves[1][step], curves[0][step], 0.06) << "bf16, step " << step + 1;
    EXPECT_NEAR(curves[2][step], curves[0][step], 0.06) << "8bit, step " << step + 1;
  }
}

TEST(Trainer, TheSameSeedInitializesTheSameWeights) {
  TrainingRun first({});
  TrainingRun second({});
  EXPECT_EQ(first.state(), second.state());
  const ParameterTable& table = first.trainer().decoder().parameters();
  for (const Parameter& parameter : table.entries()) {
    const auto* values = table.view(first.trainer().buffers().weights, parameter).data<float>();
    double square = 0;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) square += values[i] * values[i];
    square /= static_cast<double>(parameter.shape.elements());
    const double wanted = 1 / std::sqrt(static_cast<double>(first.trainer().decoder().config().hidden));
    EXPECT_NEAR(std::sqrt(square), parameter.decays ? wanted : 1, parameter.decays ? 0.05 * wanted : 0)
        << parameter.name;
  }
}

// Two ranks that have a row each of a batch are one rank with both: the same loss and norm, and both have the
// same weights.
TEST(Trainer, TwoRanksWithARowEachAreOneWithBoth) {
  const OptimizerSettings settings{.learning_rate = 1e-3, .steps = 10};
  TrainingRun one(settings);
  HostBatch whole = one.batch(3);
  std::fill_n(whole.labels.begin(), 20, kIgnore);  // ranks need not have as many labels
  HostBatch second = whole;
  std::fill_n(second.labels.begin(), std::ssize(second.labels) / 2, kIgnore);
  TrainingRun alone(settings, DType::f32, 1);
  const std::optional<double> second_row = alone.evaluate(row_of(whole, 1));
  static_cast<void>(one.micro_step(whole));
  const LossSum loss = one.step_loss();
  const double norm = one.update(1);

  ThreadRanks ranks(2);
  std::array<LossSum, 2> losses;
  std::array<std::optional<double>, 2> evaluated;
  std::array<double, 2> norms{};
  std::array<std::vector<std::vector<std::byte>>, 2> states;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TrainingRun run(settings, DType::f32, 2, false, &ranks.communicator(static_cast<int>(r)));
      evaluated[r] = run.evaluate(second);
      static_cast<void>(run.micro_step(whole));
      losses[r] = run.step_loss();
      norms[r] = run.update(1);
      states[r] = run.state();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(losses[r].labels, loss.labels);
    EXPECT_NEAR(losses[r].sum, loss.sum, 1e-6 * loss.sum);
    EXPECT_EQ(evaluated[r], second_row);  // a rank without a label has the other's
    EXPECT_NEAR(norms[r], norm, 1e-5 * norm);
  }
  EXPECT_EQ(states[0], states[1]);
}

// A rank that fails between phases does not leave the others waiting.
TEST(Trainer, ARankWhoseDataFailsEndsTheOthers) {
  ThreadRanks ranks(2);
  std::array<std::string, 2> errors;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        TrainingRun run({.steps = 10}, DType::f32, 2, false, &ranks.communicator(static_cast<int>(r)));
        const HostBatch batch = run.batch(3);
        static_cast<void>(run.micro_step([&](const Samples& samples) {
          check(r != 0, "the data of rank 0 cannot be read");
          batch.copy_to(samples);
        }));
      } catch (const Error& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[0], "the data of rank 0 cannot be read");
  EXPECT_EQ(errors[1], "rank 0 ended with an error");
}

}  // namespace
}  // namespace headroom
