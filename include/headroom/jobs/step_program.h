// One training step on random tokens: what bench step times and profile looks into.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "headroom/plan.h"
#include "headroom/train.h"

namespace headroom {

// A piece of work of a step, and the phase that it belongs to.
struct StepWork {
  Phase phase;
  WorkRecord record;
};

class StepProgram {
 public:
  // Reserves what the fit says, and fills the weights.
  StepProgram(Backend& backend, const TrainingProblem& problem, const TrainingFit& fit)
      : StepProgram(backend, problem, fit.strategy, fit.layout) {}
  // The same as one of several ranks, whose layout it is.
  StepProgram(Backend& backend, const TrainingProblem& problem, const Strategy& strategy,
              const Layout& layout, Communicator* communicator = nullptr)
      : vocab_(problem.config.vocab),
        seq_(problem.sizes.context),
        accumulation_(problem.accumulation),
        context_(backend, layout, communicator),
        trainer_(Decoder(problem.config, strategy, problem.sizes, problem.mask), problem.optimizer) {
    trainer_.load(context_, [&](Staging&) { trainer_.initialize(context_, 0); });
  }

  [[nodiscard]] Context& context() { return context_; }

  // Random tokens, each to predict the next.
  void micro_step() {
    const LossSum loss = trainer_.micro_step(context_, [&](const Samples& batch) {
      const Random random(1);
      const auto token = [&](std::uint64_t i) {
        return static_cast<std::int32_t>(random.below(i, static_cast<std::uint64_t>(vocab_)));
      };
      for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
        batch.tokens[i] = token(i);
        batch.labels[i] = token(i + 1);
        batch.positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(seq_));
      }
    });
    labels_ += loss.labels;
  }
  void update() { trainer_.update(context_, ++updates_, std::exchange(labels_, 0)); }

  // Forward, loss and backward of every batch of an update.
  void micro_steps() {
    for (std::int64_t i = 0; i < accumulation_; ++i) micro_step();
  }
  void step() {
    micro_steps();
    update();
  }

  // What has run so far is left out of work().
  void warmed_up() {
    warm_.clear();
    warm_ = work();
  }
  // Returns the work of a micro-step, then that of an update.
  [[nodiscard]] std::vector<StepWork> work() const {
    std::vector<StepWork> work;
    for (const Phase phase : {Phase::micro_step, Phase::update}) {
      for (const WorkRecord& record : context_.work(phase)) work.push_back({phase, record});
    }
    for (std::size_t i = 0; i < std::min(work.size(), warm_.size()); ++i) {
      work[i].record.runs -= warm_[i].record.runs;
      work[i].record.seconds -= warm_[i].record.seconds;
    }
    return work;
  }

 private:
  std::int64_t vocab_;
  std::int64_t seq_;
  std::int64_t accumulation_;
  Context context_;
  Trainer trainer_;
  std::int64_t updates_ = 0;
  std::int64_t labels_ = 0;  // since the last update
  std::vector<StepWork> warm_;
};

}  // namespace headroom
