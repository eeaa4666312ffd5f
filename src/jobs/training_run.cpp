#include "jobs/training_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "headroom/core/finite.h"
#include "headroom/model.h"
#include "jobs/metrics.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHeldOut = std::int64_t{1} << 40;  // samples from here on are never trained on
constexpr std::int64_t kHeldOutBatches = 4;

TrainState first_state(const TrainingPlan& plan) {
  TrainState state;
  for (const Setting& setting : plan.settings) state.settings[setting.name] = setting.value;
  return state;
}

ModelFiles files_of(const TrainingPlan& plan) {
  // A run that goes on takes them from its checkpoint: the model's folder may be gone by then.
  if (plan.checkpoint) return ModelFiles(*plan.checkpoint, plan.options.out);
  if (plan.weights) return ModelFiles(*plan.weights, plan.options.out);
  return {};
}

// Samples that cannot be read: the data has changed, or holds what the model has no word for.
struct UnreadableSamples : Error {
  using Error::Error;
};

// Every rank has a layout of its own.
Layout layout_of(const TrainingPlan& plan, const Backend& backend, const Communicator* communicator) {
  if (communicator == nullptr) return plan.fit.layout;
  return rehearse_training(plan.problem, plan.fit.strategy, backend.description(),
                           communicator->ranks().rank);
}

// One rank's part of a run. The first rank writes the files.
class TrainingRun {
 public:
  TrainingRun(const TrainingPlan& plan, Backend& backend, Communicator* communicator)
      : options_(plan.options),
        problem_(plan.problem),
        plan_(plan),
        communicator_(communicator),
        leads_(communicator == nullptr || communicator->ranks().rank == 0),
        files_(leads_ ? files_of(plan) : ModelFiles()),
        state_(first_state(plan)),
        context_(backend, layout_of(plan, backend, communicator), communicator),
        trainer_(Decoder(problem_.config, plan.fit.strategy, problem_.sizes, problem_.mask),
                 problem_.optimizer) {}

  TrainingResult run(const TrainingObserver& observer) {
    start();
    const bool replaces = options_.overwrite && !plan_.checkpoint;
    std::optional<Metrics> metrics;
    if (leads_) {
      metrics.emplace(options_.out, replaces ? std::numeric_limits<std::int64_t>::max() : state_.step);
    }
    // Ranks stop together, whichever of them was told to.
    const auto stop = [&] { return context_.all_reduce(observer.stop() ? 1.0 : 0.0) > 0; };
    TrainingResult result;
    result.first_step = state_.step + 1;
    result.checkpoint = plan_.checkpoint.value_or(fs::path());
    // All ranks call it: where rank 0 cannot write, they stop together, since they may have to save together.
    const auto with_metrics = [&](const auto& call) {
      std::optional<Error> failed;
      if (metrics) {
        try {
          call();
        } catch (const Error& error) {
          metrics->check_folder();  // nothing can be saved to a folder that is gone
          failed = error;
        }
      }
      if (context_.all_reduce(failed ? 1.0 : 0.0) == 0) return;
      stop_after_saving(failed.value_or(Error(ErrorKind::runtime, "rank 0 cannot write its metrics",
                                              std::source_location::current())),
                        0);
    };
    const auto save_step = [&] {
      with_metrics([&] { metrics->before_checkpoint(); });
      result.checkpoint = save();
    };
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    while (state_.step < problem_.optimizer.steps) {
      const double began = seconds();
      std::optional<StepReport> report = next_step(stop);
      if (!report) {
        result.interrupted = true;
        break;
      }
      // Not before the new run has shown that it can read its data and write its own files.
      if (metrics && replaces && state_.step == 1) {
        metrics.emplace(options_.out, 0);
        remove_checkpoints(options_.out);
      }
      report->seconds = seconds();
      report->tokens_per_second = static_cast<double>(step_tokens(problem_)) / (report->seconds - began);
      if (!report->loss) ++result.steps_without_labels;
      if (!result.first_loss) result.first_loss = report->loss;
      if (report->loss) result.last_loss = report->loss;
      with_metrics([&] { metrics->add(*report); });
      if (leads_) observer.step(*report);
      if (options_.save_every > 0 && state_.step % options_.save_every == 0) save_step();
    }
    result.last_step = state_.step;
    if (state_.step != saved_step_) save_step();
    if (!plan_.data.samples_per_epoch() && !result.interrupted) result.held_out_loss = held_out_loss(stop);
    result.seconds = seconds();
    result.live_peak_bytes = context_.ledger().usage(Space::device).peak_bytes;
    result.rank_live_peak_bytes = peaks_of_ranks();
    result.notes = notes_;
    return result;
  }

 private:
  void start() {
    trainer_.load(context_, [&](Staging& staging) {
      if (const auto& checkpoint = plan_.checkpoint) return go_on(*checkpoint, staging);
      if (const auto& weights = plan_.weights) return read_weights(*weights, staging);
      trainer_.initialize(context_, options_.seed);
    });
  }

  void go_on(const fs::path& checkpoint, Staging& staging) {
    const TrainState saved = read_checkpoint(checkpoint, problem_.config, trainer_.buffers(), staging);
    state_.step = saved.step;
    state_.tokens = saved.tokens;
    state_.samples = saved.samples;
    saved_step_ = saved.step;
  }

  void read_weights(const fs::path& weights, Staging& staging) {
    const TrainBuffers buffers = trainer_.buffers();
    const ParameterTable& table = trainer_.decoder().parameters();
    load_weights(weights, table, buffers.weights, staging, buffers.weight_slices);
    if (const auto broken = broken_parameter(buffers.weights, staging)) {
      fail(ErrorKind::input, "{}: tensor {} is not finite in {}", weights.string(),
           table.entries()[*broken].name, name(buffers.weights.view().dtype()));
    }
    if (buffers.master.view().elements() == 0) return;
    load_weights(weights, table, buffers.master, staging, buffers.state_slices);
  }

  // The batch that begins with the sample.
  [[nodiscard]] Trainer::FillBatch batch_from(std::int64_t sample) const {
    return [this, sample](const Samples& batch) {
      for (std::int64_t i = 0; i < problem_.sizes.batch; ++i) {
        try {
          plan_.data.fill(sample + i, batch.sample(i, problem_.sizes.batch));
        } catch (const Error& error) {
          throw UnreadableSamples(error.kind(), error.what(), error.where());
        }
      }
    };
  }

  // Data that turns out bad after some steps does not take these with it.
  std::optional<StepReport> next_step(const std::function<bool()>& stop) {
    try {
      return step(stop);
    } catch (const UnreadableSamples& error) {
      if (state_.step == 0) throw;
      stop_after_saving(error);
    }
  }

  // One update; nothing where stop() said so between its micro-steps. What these have added to the gradients
  // then goes no further: no checkpoint holds gradients, and a resumed run makes the step from its beginning.
  // The mean loss is over all labels of the step, however its batches share them. Without one there is
  // nothing to learn from: weights and moments stay as they are, and the step counts.
  std::optional<StepReport> step(const std::function<bool()>& stop) {
    const std::int64_t number = state_.step + 1;
    const std::int64_t batch = problem_.sizes.batch;
    const std::int64_t accumulation = problem_.accumulation;
    LossSum loss;
    for (std::int64_t i = 0; i < accumulation; ++i) {
      if (stop()) return std::nullopt;
      const auto fill = batch_from(state_.samples + i * batch);
      const LossSum part = trainer_.micro_step(context_, fill);
      if (!std::isfinite(part.sum)) stop_at_loss(number, part.sum, fill);
      loss += part;
    }
    std::optional<double> norm;
    if (loss.labels > 0) norm = trainer_.update(context_, number, loss.labels);
    if (norm && !std::isfinite(*norm)) stop_at_gradient(number, *norm);
    state_.step = number;
    state_.samples += batch * accumulation;
    state_.tokens += step_tokens(problem_);
    const Usage& usage = context_.ledger().usage(Space::device);
    return StepReport{.step = number,
                      .loss = loss.mean(),
                      .labels = loss.labels,
                      .learning_rate = learning_rate(problem_.optimizer, number),
                      .grad_norm = norm,
                      .tokens = state_.tokens,
                      .live_bytes = usage.live_bytes,
                      .live_peak_bytes = usage.peak_bytes,
                      .rank_live_peak_bytes = peaks_of_ranks()};
  }

  // The live peak of every rank, which all of them ask for together.
  [[nodiscard]] std::vector<std::int64_t> peaks_of_ranks() {
    const std::int64_t own = context_.ledger().usage(Space::device).peak_bytes;
    if (communicator_ == nullptr) return {own};
    std::vector<std::int64_t> peaks;
    for (const std::uint64_t bytes : communicator_->all_values(static_cast<std::uint64_t>(own))) {
      peaks.push_back(static_cast<std::int64_t>(bytes));
    }
    return peaks;
  }

  [[nodiscard]] static bool is_finite(const TensorPart& part, Staging& staging) {
    bool finite = true;
    staging.download(part, [&](std::span<const std::byte> piece, std::int64_t) {
      finite = finite && all_finite(piece, part.tensor.view().dtype());
    });
    return finite;
  }

  // The place in the table of the first parameter that is not finite in this rank's weights or gradients;
  // nothing where all are.
  [[nodiscard]] std::optional<std::size_t> broken_parameter(const Tensor& flat, Staging& staging) const {
    const ParameterTable& table = trainer_.decoder().parameters();
    const std::array whole = {ShardSlice{.elements = table.elements()}};
    const std::span<const ShardSlice> divided = trainer_.buffers().weight_slices;
    const std::span<const ShardSlice> slices = divided.empty() ? std::span<const ShardSlice>(whole) : divided;
    for (std::size_t i = 0; i < table.entries().size(); ++i) {
      const Parameter& parameter = table.entries()[i];
      bool finite = true;
      for_each_overlap(slices, parameter.offset, parameter.offset + parameter.shape.elements(),
                       [&](std::int64_t, std::int64_t own, std::int64_t elements) {
                         finite = finite && is_finite({flat, own, elements}, staging);
                       });
      if (!finite) return i;
    }
    return std::nullopt;
  }

  // What ranks have found, each for itself: the one that comes first in a list that all of them have.
  struct FirstOfRanks {
    std::string name;  // empty where no rank has found anything
    int rank = 0;
  };
  // All ranks call it, each with what it has found, and come to the same result.
  [[nodiscard]] FirstOfRanks first_of_ranks(const std::vector<std::string>& names, std::string_view own) {
    const auto found = static_cast<std::size_t>(std::ranges::find(names, own) - names.begin());
    if (communicator_ == nullptr) return {.name = found < names.size() ? names[found] : ""};
    const std::span<const std::uint64_t> all = communicator_->all_values(found);
    const auto first = std::ranges::min_element(all);
    if (*first >= names.size()) return {};
    return {.name = names[*first], .rank = static_cast<int>(first - all.begin())};
  }
  // The first parameter that is not finite on some rank. All ranks look, in a phase of their own.
  [[nodiscard]] FirstOfRanks first_broken_parameter(const Tensor& flat) {
    std::vector<std::string> names;
    for (const Parameter& parameter : trainer_.decoder().parameters().entries()) {
      names.push_back(parameter.name);
    }
    std::string own;
    trainer_.save(context_, [&](Staging& staging) {
      if (const auto broken = broken_parameter(flat, staging)) own = names[*broken];
    });
    return first_of_ranks(names, own);
  }

  [[nodiscard]] std::string on_rank(int rank) const {
    return context_.ranks().count == 1 ? "" : fmt::format(" on rank {}", rank);
  }
  // Throws what all ranks have found; the rank that it is about says it. The others stay until it has ended
  // the run: one of them that left before would end it with less to say.
  [[noreturn]] void fail_on_all(int rank, const std::string& text) {
    if (communicator_ == nullptr) fail(ErrorKind::runtime, "{}", text);
    if (communicator_->ranks().rank != rank) wait_for_all();
    communicator_->fail_on_all(rank, text);
  }

  // For the end of an error's message, which must not become another error.
  [[nodiscard]] std::string last_good() const {
    try {
      const auto latest = latest_checkpoint(options_.out);
      return latest ? fmt::format("the last checkpoint is {}", latest->string())
                    : "there is no checkpoint yet";
    } catch (const Error& error) {
      return fmt::format("its checkpoints cannot be listed ({})", error.what());
    }
  }

  // A rank that ends earlier would end the one that saves. Where others do not come, they have ended.
  void wait_for_all() noexcept {
    try {
      if (communicator_ != nullptr) communicator_->barrier();
    } catch (const std::exception&) {  // this rank has a reason of its own to end
    }
  }

  // What was trained is saved first. Where that fails too, both reasons are said. `teller` is the rank whose
  // reason it is, where all ranks come here.
  [[noreturn]] void stop_after_saving(const Error& reason, std::optional<int> teller = {}) {
    std::string failed;
    try {
      if (state_.step != saved_step_) static_cast<void>(save());
    } catch (const Error& error) {
      failed = error.what();
    }
    wait_for_all();
    const std::string text = fmt::format("{}; training stopped after step {}; {}", reason.what(), state_.step,
                                         failed.empty() ? last_good() : failed);
    if (communicator_ != nullptr && teller) communicator_->fail_on_all(*teller, text);
    fail(ErrorKind::runtime, "{}", text);
  }

  [[noreturn]] void stop_at_loss(std::int64_t step, double sum, const Trainer::FillBatch& fill) {
    const std::string_view loss = std::isnan(sum) ? "nan" : "infinite";
    if (const FirstOfRanks weight = first_broken_parameter(trainer_.buffers().weights);
        !weight.name.empty()) {
      fail_on_all(weight.rank, fmt::format("step {}: the loss is {} because weight {} is not finite; {}",
                                           step, loss, weight.name, last_good()));
    }
    std::vector<std::string> names;
    std::string own;
    trainer_.evaluate(context_, fill, [&](std::string_view name, const Tensor& result, Staging& staging) {
      names.emplace_back(name);
      if (own.empty() && !is_finite({result, 0, result.view().elements()}, staging)) own = name;
    });
    const FirstOfRanks first = first_of_ranks(names, own);
    const std::string tensor = first.name.empty()
                                   ? "the loss itself"
                                   : fmt::format("the result of {}{}", first.name, on_rank(first.rank));
    fail_on_all(first.rank,
                fmt::format("step {}: the loss is {}; the first tensor that is not finite is {}; {}", step,
                            loss, tensor, last_good()));
  }

  [[noreturn]] void stop_at_gradient(std::int64_t step, double norm) {
    // The update has cleared the gradients and changed nothing else: the same batches make them again.
    for (std::int64_t i = 0; i < problem_.accumulation; ++i) {
      trainer_.micro_step(context_, batch_from(state_.samples + i * problem_.sizes.batch));
    }
    const FirstOfRanks first = first_broken_parameter(trainer_.gradients());
    const std::string which = first.name.empty() ? "none: their squares overflow"
                                                 : fmt::format("{}{}", first.name, on_rank(first.rank));
    fail_on_all(
        first.rank,
        fmt::format("step {}: the gradients' norm is {}; the first that is not finite is that of {}; {}",
                    step, norm, which, last_good()));
  }

  fs::path save() {
    fs::path checkpoint;
    const auto write = [&](Staging& staging, StateGather* gather) {
      checkpoint = write_checkpoint(options_.out, problem_.config, state_, trainer_.buffers(), staging,
                                    files_, gather);
      for (const std::string& note : remove_old_checkpoints(options_.out, options_.keep_last)) {
        if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
      }
    };
    try {
      if (trainer_.divides_state()) {
        trainer_.save_divided(context_,
                              [&](Staging& staging, StateGather& gather) { write(staging, &gather); });
      } else if (leads_) {  // all ranks have the same weights and moments
        trainer_.save(context_, [&](Staging& staging) { write(staging, nullptr); });
      }
    } catch (const OtherRankFailed&) {
      throw;
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("step {}: {}; {}", state_.step, error.what(), last_good()),
                  error.where());
    }
    saved_step_ = state_.step;
    return checkpoint;
  }

  // Nothing where stop() said so, or where no batch has a label.
  std::optional<double> held_out_loss(const std::function<bool()>& stop) {
    LossSum loss;
    for (std::int64_t i = 0; i < kHeldOutBatches; ++i) {
      if (stop()) return std::nullopt;
      loss += trainer_.evaluate(context_, batch_from(kHeldOut + i * problem_.sizes.batch));
    }
    return loss.mean();
  }

  const TrainingOptions& options_;
  const TrainingProblem& problem_;
  const TrainingPlan& plan_;
  Communicator* communicator_;
  bool leads_;
  ModelFiles files_;
  TrainState state_;
  Context context_;
  Trainer trainer_;
  std::int64_t saved_step_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace

TrainingResult run_training(const TrainingPlan& plan, Backend& backend, Communicator* communicator,
                            const TrainingObserver& observer) {
  validate(first_state(plan));  // nothing that cannot be saved is trained
  return TrainingRun(plan, backend, communicator).run(observer);
}

}  // namespace headroom
