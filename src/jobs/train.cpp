#include "headroom/jobs/train.h"

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "headroom/comm.h"
#include "headroom/core/bytes.h"
#include "headroom/core/parse.h"
#include "headroom/jobs/rates.h"
#include "jobs/metrics.h"
#include "jobs/same_run.h"
#include "jobs/training_run.h"
#include "plan/causal_mask.h"
#include "report/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// What --resume goes on from.
struct Resumed {
  fs::path checkpoint;
  TrainState state;

  // A whole number among the settings of the run that saved it.
  [[nodiscard]] std::int64_t whole_setting(const std::string& name) const {
    const auto found = state.settings.find(name);
    check(found != state.settings.end(), "{}: the settings have no {}", checkpoint.string(), name);
    return parse_whole(fmt::format("{}: setting {}", checkpoint.string(), name), found->second, 0);
  }
  // Nothing where the run that saved it had none.
  [[nodiscard]] std::optional<std::int64_t> tokens_of(std::string_view name) const {
    const auto found = state.settings.find(std::string(name));
    if (found == state.settings.end() || found->second == kNoSetting) return std::nullopt;
    return whole_setting(found->first);
  }
};

// From the root, so that it is no built-in model's name.
std::string whole_path(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored).string();
}

// The folder of a resumed run's model may be gone: its checkpoint has the same config.json.
FoundModel model_of(const TrainingOptions& options, const std::optional<Resumed>& resumed) {
  std::error_code ignored;
  if (resumed && !fs::exists(options.model, ignored)) {
    const auto saved = resumed->state.settings.find("model");
    if (saved != resumed->state.settings.end() && saved->second == whole_path(options.model)) {
      return open_model(resumed->checkpoint.string());
    }
  }
  return open_model(options.model);
}

// Everything that the next step's bits depend on; the budget and the number of threads are not among it.
std::vector<Setting> settings_of(const TrainingOptions& options, const FoundModel& model, const Data& data,
                                 const TrainingProblem& problem, const Strategy& strategy,
                                 const DeviceDescription& device) {
  std::vector<Setting> settings;
  const auto add = [&](SettingKind kind, std::string_view name, const auto& value) {
    settings.push_back({.name = std::string(name), .value = fmt::format("{}", value), .kind = kind});
  };
  const OptimizerSettings& optimizer = problem.optimizer;
  // Data and models are compared by what they hold: they may have moved.
  add(SettingKind::free, "model", model.folder ? whole_path(options.model) : options.model);
  add(SettingKind::free, "data", options.data);
  add(SettingKind::exact, "data_fingerprint", data.fingerprint());
  add(SettingKind::exact, "context", options.context);
  add(SettingKind::exact, "batch", options.batch);
  add(SettingKind::exact, "accumulation", options.accumulation);
  add(SettingKind::exact, "max_documents", problem.sizes.max_documents);
  add(SettingKind::exact, "attention", options.attention);
  add(SettingKind::exact, "dtype", name(problem.compute_dtype));
  add(SettingKind::exact, "state", name(problem.state));
  add(SettingKind::exact, "seed", options.seed);
  add(SettingKind::free, "steps", optimizer.steps);  // may grow
  add(SettingKind::exact, "learning_rate", optimizer.learning_rate);
  add(SettingKind::exact, "warmup", optimizer.warmup_steps);
  add(SettingKind::exact, "final_fraction", optimizer.final_fraction);
  add(SettingKind::exact, "beta1", optimizer.beta1);
  add(SettingKind::exact, "beta2", optimizer.beta2);
  add(SettingKind::exact, "epsilon", optimizer.epsilon);
  add(SettingKind::exact, "weight_decay", optimizer.weight_decay);
  add(SettingKind::exact, "clip", optimizer.max_norm);
  add(SettingKind::last_bits, "version", HEADROOM_VERSION);
  add(SettingKind::last_bits, "device", fmt::format("{}", fmt::join(options.devices, ",")));
  add(SettingKind::last_bits, "simd", name(device.simd));
  add(SettingKind::last_bits, "ranks", strategy.ranks());
  add(SettingKind::last_bits, "ring", strategy.ring_ranks);
  add(SettingKind::last_bits, "shard", name(strategy.sharding));
  add(SettingKind::last_bits, "loss_ranks", name(strategy.loss_ranks));
  add(SettingKind::last_bits, "gpu", device.kind == DeviceKind::cuda ? device.name : kNoSetting);
  add(SettingKind::last_bits, "products",
      device.product_library.empty() ? kNoSetting : device.product_library);
  return settings;
}

// How a GPU's sums are cut: another chunk or tile is another product, whose algorithm adds up in an order of
// its own.
struct Cut {
  std::string_view name;
  std::int64_t Strategy::*tokens;
  std::optional<std::int64_t> StrategyPins::*pin;
};
constexpr std::array kCuts = {
    Cut{"loss_chunk", &Strategy::loss_chunk_tokens, &StrategyPins::loss_chunk_tokens},
    Cut{"mlp_tile", &Strategy::mlp_tile_tokens, &StrategyPins::mlp_tile_tokens}};

// As many ranks as before divide what they divided.
void divide_as_before(StrategyPins& pins, const Resumed& resumed) {
  const std::optional<std::int64_t> ring = resumed.tokens_of("ring");
  if (pins.ranks == 1 || resumed.tokens_of("ranks") != pins.ranks || !ring || *ring == 0) return;
  if (!pins.ring && pins.ranks % *ring == 0) pins.ring = ring;
  if (!pins.sharding) pins.sharding = parse_sharding(resumed.state.settings.at("shard"));
  if (!pins.loss_ranks) pins.loss_ranks = parse_loss_ranks(resumed.state.settings.at("loss_ranks"));
}

// A chunk of the loss has tokens of one rank, or of all where they divide the vocabulary.
bool has_chunks_as_before(const StrategyPins& pins, const Resumed& resumed) {
  if (parse_loss_ranks(resumed.state.settings.at("loss_ranks")) == LossRanks::vocabulary) {
    return pins.loss_ranks == LossRanks::vocabulary && resumed.tokens_of("ranks") == pins.ranks;
  }
  return pins.ranks == 1 || pins.loss_ranks == LossRanks::tokens;
}

// The fastest strategy that fits. A resumed run is divided as before, and cut as before on a GPU, unless that
// no longer fits or a flag says otherwise.
TrainingFit fit_run(PlanRequest request, const CostModel& costs, const std::optional<Resumed>& resumed) {
  const StrategyPins asked = request.pins;
  const bool gpu = request.device.kind == DeviceKind::cuda;
  if (resumed && (gpu || request.pins.ranks > 1)) {
    divide_as_before(request.pins, *resumed);
    for (const Cut& cut : kCuts) {
      std::optional<std::int64_t>& pin = request.pins.*cut.pin;
      const bool other_chunks =
          cut.pin == &StrategyPins::loss_chunk_tokens && !has_chunks_as_before(request.pins, *resumed);
      if (!pin && gpu && !other_chunks) pin = resumed->tokens_of(cut.name);
    }
    TrainingFit as_before = fit_training(request, costs);
    if (as_before.fits) return as_before;
    request.pins = asked;
  }
  return fit_training(request, costs);
}

void add_cuts(std::vector<Setting>& settings, const Strategy& strategy, const DeviceDescription& device) {
  for (const Cut& cut : kCuts) {
    settings.push_back({.name = std::string(cut.name),
                        .value = device.kind == DeviceKind::cuda ? fmt::format("{}", strategy.*cut.tokens)
                                                                 : std::string(kNoSetting),
                        .kind = SettingKind::last_bits});
  }
}

std::int64_t warmup_steps(const TrainingOptions& options, const std::optional<Resumed>& resumed) {
  if (options.warmup) return *options.warmup;
  // The default depends on --steps, which may have grown.
  if (resumed) return resumed->whole_setting("warmup");
  return std::min<std::int64_t>(options.optimizer.steps / 10, 100);
}

std::int64_t max_documents(const TrainingOptions& options) {
  return options.max_documents.value_or(256);
}

TrainingProblem make_problem(const TrainingOptions& options, const Data& data, const ModelConfig& config,
                             const DeviceDescription& device, const std::optional<Resumed>& resumed) {
  TrainingProblem problem{
      .config = config,
      .sizes = {.batch = options.batch,
                .context = options.context,
                .max_documents = data.documents() ? max_documents(options) : 0},
      .mask = causal_mask(options.attention),
      .optimizer = options.optimizer,
      .compute_dtype = options.dtype ? parse_dtype(*options.dtype) : default_training_dtype(device),
      .state = parse_state(options.state),
      .accumulation = options.accumulation};
  problem.optimizer.warmup_steps = warmup_steps(options, resumed);
  validate(problem.optimizer);
  check(data.documents() || !options.max_documents,
        "--max-documents means nothing with data '{}', which has no documents", options.data);
  check_training_dtype(device, problem.compute_dtype);
  check_state(problem.state, problem.compute_dtype);
  return problem;
}

// Throws where the run that is resumed was another one. Returns what its owner has to know, a line each.
std::vector<std::string> compare(const Resumed& resumed, const TrainingPlan& plan) {
  const TrainState& state = resumed.state;
  const auto saved = [&](const std::string& name) {
    const auto found = state.settings.find(name);
    return found == state.settings.end() ? std::string() : found->second;
  };
  const auto fingerprint = std::ranges::find(plan.settings, "data_fingerprint", &Setting::name);
  check(saved("data_fingerprint") == fingerprint->value,
        "--resume: the data is not that of {}: it was made with '{}' of fingerprint {}, and '{}' has {}",
        resumed.checkpoint.string(), saved("data"), saved("data_fingerprint"), plan.options.data,
        fingerprint->value);
  std::vector<std::string> notes;
  const std::string last_bits = compare_settings(state, plan.settings);
  if (!last_bits.empty()) notes.push_back(last_bits);
  OptimizerSettings before = plan.problem.optimizer;
  before.steps = resumed.whole_setting("steps");
  if (const std::int64_t steps = plan.problem.optimizer.steps; steps != before.steps) {
    const std::int64_t next = state.step + 1;
    notes.push_back(
        fmt::format("--steps is {} and was {}: from here on the learning rate is that of a run of {} steps "
                    "(step {}: {:.3g} instead of {:.3g})",
                    format_count(steps), format_count(before.steps), format_count(steps), format_count(next),
                    learning_rate(plan.problem.optimizer, next), learning_rate(before, next)));
  }
  for (const IncompleteCheckpoint& incomplete : incomplete_checkpoints(plan.options.out)) {
    notes.push_back(
        fmt::format("{} is not complete ({} is missing): it is not resumed from, and the run replaces "
                    "it when it comes to that step",
                    incomplete.path.string(), incomplete.missing));
  }
  return notes;
}

// What --resume goes on from. Without it the folder must not hold what a run would replace.
std::optional<Resumed> find_run(const TrainingOptions& options) {
  const auto latest = latest_checkpoint(options.out);
  const auto incomplete = incomplete_checkpoints(options.out);
  for (const IncompleteCheckpoint& folder : incomplete) {
    check(is_folder(folder.path),
          "{} has the name of a checkpoint and is no folder; remove it, or choose another --out",
          folder.path.string());
  }
  const std::string first_incomplete =
      incomplete.empty()
          ? std::string()
          : fmt::format("{}, which is not complete ({} is missing)",
                        incomplete.front().path.filename().string(), incomplete.front().missing);
  if (options.resume) {
    if (!latest) {
      fail(ErrorKind::input, "--resume: {} has no checkpoint{}", options.out,
           incomplete.empty() ? "" : " but " + first_incomplete);
    }
    Resumed resumed{.checkpoint = *latest, .state = read_train_state(*latest)};
    std::map<std::string, std::string>& saved = resumed.state.settings;
    saved.try_emplace("state", "f32");  // of a program that had no other
    saved.try_emplace("shard", "none");
    saved.try_emplace("loss_ranks", "tokens");
    if (const auto ranks = saved.find("ranks"); ranks != saved.end())
      saved.try_emplace("ring", ranks->second);
    check(resumed.state.step < options.optimizer.steps,
          "--resume: {} has done {} of {} steps, so nothing is left to do; a larger --steps goes on",
          latest->string(), resumed.state.step, options.optimizer.steps);
    return resumed;
  }
  if (options.overwrite) return std::nullopt;
  check(!latest,
        "{} has the checkpoint {}; --resume goes on from it, --overwrite removes it, or choose another --out",
        options.out, latest ? latest->filename().string() : "");
  check(incomplete.empty(), "{} has {}; --overwrite removes it, or choose another --out", options.out,
        first_incomplete);
  std::error_code missing;
  const fs::path metrics = metrics_path(options.out);
  const auto metrics_bytes = fs::file_size(metrics, missing);
  check(missing || metrics_bytes == 0,
        "{} has {} and no checkpoint belongs to it; --overwrite begins it anew, or choose another --out",
        metrics.string(), format_bytes(static_cast<std::int64_t>(metrics_bytes)));
  return std::nullopt;
}

// What is to be printed and saved as JSON at the end has to be text from the beginning.
void check_text(std::string_view option, const std::string& value) {
  try {
    static_cast<void>(OrderedJson(value).dump());
  } catch (const OrderedJson::exception&) {
    fail(ErrorKind::input, "{} {} is no UTF-8; rename it", option,
         OrderedJson(value).dump(-1, ' ', true, OrderedJson::error_handler_t::replace));
  }
}

}  // namespace

bool is_file_of_run(const std::string& file, const std::string& out) {
  const fs::path inside = fs::path(whole_path(file)).lexically_relative(whole_path(out));
  if (inside.empty()) return false;
  const std::string name = inside.begin()->string();
  return name == ".lock" || name == metrics_path({}).string() || name.starts_with("step-") ||
         name.starts_with(".step-");
}

namespace {

// All ranks plan for the smallest budget of a rank: what is free may differ.
void agree_on(MemoryBudget& budget, Communicator& ranks) {
  for (const std::uint64_t bytes : ranks.all_values(static_cast<std::uint64_t>(budget.bytes))) {
    budget.bytes = std::min(budget.bytes, static_cast<std::int64_t>(bytes));
  }
}

// Throws the error that ended a run: that of the first rank that was not ended by another one.
void throw_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr echo;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const OtherRankFailed&) {
      if (!echo) echo = error;
    }
  }
  if (echo) std::rethrow_exception(echo);
}

// The link that the planner estimates messages with. In one memory, a host's or a GPU's, they are copies.
LinkModel link_of_run(const TrainingOptions& options, const DeviceDescription& device, bool one_memory) {
  LinkModel link = one_memory ? LinkModel{} : default_link(device, options.pins.ranks).model;
  if (options.link) link.bytes_per_second = parse_link_rate(*options.link);
  if (options.latency_seconds) link.latency = Seconds(*options.latency_seconds);
  return link;
}

TrainingPlan plan_rank(const TrainingOptions& options, const RankProcess& process) {
  Communicator* const launched = process.communicator;
  const std::int64_t code_bytes = process_mapped_bytes();  // before the data is mapped
  check_text("--model", options.model);
  check_text("--data", options.data);
  check_text("--out", options.out);
  check(!options.resume || !options.overwrite, "--resume keeps what --overwrite removes; give one of them");
  if (launched != nullptr) check_same_options(options, *launched);
  const int ranks_here = launched == nullptr ? static_cast<int>(options.pins.ranks) : process.local_count;
  const std::vector<Device> devices = devices_of_ranks(options.devices);
  check(
      launched != nullptr || std::ssize(devices) <= ranks_here,
      "--device lists {} devices and --ranks is {}; a rank takes one device, so list no more than there are "
      "ranks",
      devices.size(), ranks_here);
  const bool on_cpu = devices[0].kind == DeviceKind::cpu;
  const auto open = [&](int rank) {
    return open_run_device({.device = to_string(device_of_rank(devices, rank)),
                            .threads = launched != nullptr && on_cpu
                                           ? agreed_threads(options, ranks_here, *launched)
                                           : options.threads,
                            .budget_bytes = options.budget_bytes,
                            .host_budget_bytes = options.host_budget_bytes,
                            .ranks_here = ranks_here,
                            .ranks_on_device = ranks_on_device(devices, rank, ranks_here),
                            .ranks_are_processes = launched != nullptr});
  };
  RunDevice device = open(process.local_rank);
  if (launched != nullptr) {
    for (MemoryBudget* budget : {&device.budget, &device.host}) agree_on(*budget, *launched);
  } else {
    for (int rank = 1; rank < std::ssize(devices); ++rank) {
      device.budget.bytes = std::min(device.budget.bytes, open(rank).budget.bytes);
    }
  }
  AppendedFile::check_kind(metrics_path(options.out));
  // Nothing in the folder is read or written by two runs at a time.
  std::optional<FolderLock> lock;
  const bool leads = launched == nullptr || launched->ranks().rank == 0;
  if (leads && is_folder(options.out)) lock.emplace(options.out);
  const std::optional<Resumed> resumed = find_run(options);
  const FoundModel model = model_of(options, resumed);
  TrainingPlan plan{.options = options,
                    .weights = model.folder,
                    .data = Data::open(options.data, {.context = options.context,
                                                      .vocab = model.config.vocab,
                                                      .seed = options.seed,
                                                      .max_documents = max_documents(options),
                                                      .bytes = options.bytes}),
                    .device = std::move(device),
                    .notes = model.notes,
                    .lock = std::move(lock),
                    .launched = launched};
  const DeviceDescription& description = plan.device.description();
  plan.problem = make_problem(options, plan.data, model.config, description, resumed);
  const DType dtype = plan.problem.compute_dtype;
  const StrategyPins pins = strategy_pins(options.pins, model.config.layers);
  CostModel costs = this_machine(description, dtype).costs;
  const bool one_memory = on_cpu
                              ? options.pins.ranks == ranks_here
                              : launched == nullptr && ranks_on_device(devices, 0, ranks_here) == ranks_here;
  costs.set_rank_link(link_of_run(options, description, one_memory));
  const PlanRequest request = plan.device.request(plan.problem, pins);
  plan.fit = fit_run(request, costs, resumed);
  plan.settings = settings_of(options, model, plan.data, plan.problem, plan.fit.strategy, description);
  add_cuts(plan.settings, plan.fit.strategy, description);
  if (resumed) {
    plan.checkpoint = resumed->checkpoint;
    std::ranges::move(compare(*resumed, plan), std::back_inserter(plan.notes));
    static_cast<void>(check_checkpoint(resumed->checkpoint, model.config, dtype, plan.problem.state));
  }
  if (!plan.fit.fits) fail_shortfall(plan.device, plan.fit, narrow_state_note(request, costs));
  plan.implementations = step_implementations(plan.problem, plan.fit.strategy, description);
  plan.naive_bytes = naive_training_bytes(plan.problem, description);
  plan.process_bytes = code_bytes + process_resident_bytes();
  plan.warning = dtype_warning(description, dtype);
  return plan;
}

// body(), for a process that is one rank of several: its error ends the other ranks.
template <class Body>
auto or_end_all(Communicator* launched, const Body& body) {
  try {
    return body();
  } catch (const OtherRankFailed&) {
    throw;
  } catch (const std::exception& error) {
    if (launched != nullptr) {
      launched->abort(fmt::format("rank {}: {}", launched->ranks().rank, error.what()));
    }
    throw;
  }
}

// Ranks that are threads of this process. Each has a backend of its own; rank 0 has the plan's and this
// thread.
TrainingResult train_on_threads(const TrainingPlan& plan, const TrainingObserver& observer) {
  const auto count = static_cast<int>(plan.ranks());
  const Backend& first = *plan.device.backend;
  const std::vector<Device> devices = devices_of_ranks(plan.options.devices);
  ThreadRanks ranks(count, plan.options.rank_timeout);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  TrainingResult result;
  const auto run_rank = [&](int rank) {
    Communicator& communicator = ranks.communicator(rank);
    try {
      if (rank == 0) {
        result = run_training(plan, *plan.device.backend, &communicator, observer);
      } else {
        const auto backend = open_backend(device_of_rank(devices, rank), first.description().cores);
        static_cast<void>(run_training(plan, *backend, &communicator, {}));
      }
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      communicator.abort(fmt::format("rank {} ended with an error", rank));
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 1; rank < count; ++rank) threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& error) {
      ranks.communicator(0).abort("a thread could not be started");
      fail(ErrorKind::runtime, "{} ranks need as many threads: {}", count, error.what());
    }
    run_rank(0);
  }
  throw_cause(errors);
  return result;
}

}  // namespace

TrainingPlan plan_training(const TrainingOptions& options, const RankProcess& process) {
  return or_end_all(process.communicator, [&] { return plan_rank(options, process); });
}

TrainingResult train(TrainingPlan& plan, const TrainingObserver& observer) {
  return or_end_all(plan.launched, [&] {
    if (plan.launched != nullptr) check_same_run(plan, *plan.launched);
    const TrainingOptions& options = plan.options;
    if (plan.leads() && !plan.lock) {
      create_folders(options.out);
      plan.lock.emplace(options.out);
      static_cast<void>(find_run(options));  // another run may have been here before the lock
    }
    if (plan.leads()) observer.began();
    if (plan.launched == nullptr && plan.ranks() > 1) return train_on_threads(plan, observer);
    return run_training(plan, *plan.device.backend, plan.launched, observer);
  });
}

std::string json(const TrainingPlan& plan, const TrainingResult& result) {
  const TrainingOptions& options = plan.options;
  OrderedJson json = {{"model", options.model},
                      {"data", options.data},
                      {"context", options.context},
                      {"batch", options.batch},
                      {"state", name(plan.problem.state)},
                      {"ranks", plan.ranks()},
                      {"ring", plan.fit.strategy.ring_ranks},
                      {"shard", name(plan.fit.strategy.sharding)},
                      {"loss_ranks", name(plan.fit.strategy.loss_ranks)},
                      {"budget_bytes", plan.device.budget.bytes},
                      {"host_budget_bytes", plan.device.host.bytes},
                      {"planned_bytes", plan.fit.layout.reserved(Space::device)},
                      {"planned_host_bytes", plan.fit.layout.reserved(Space::host)},
                      {"process_bytes", plan.process_bytes},
                      {"naive_bytes", plan.naive_bytes},
                      {"strategy", describe(plan.fit.strategy)},
                      {"implementations", plan.implementations},
                      {"first_step", result.first_step},
                      {"last_step", result.last_step},
                      {"first_loss", json_or_null(result.first_loss)},
                      {"last_loss", json_or_null(result.last_loss)},
                      {"steps_without_labels", result.steps_without_labels},
                      {"held_out_loss", json_or_null(result.held_out_loss)},
                      {"floor", json_or_null(plan.data.floor())},
                      {"seconds", result.seconds},
                      {"live_peak_bytes", result.live_peak_bytes},
                      {"rank_live_peak_bytes", result.rank_live_peak_bytes},
                      {"interrupted", result.interrupted},
                      {"checkpoint", nullptr}};
  if (const std::string choice = describe_choice(plan.fit.divisions); !choice.empty())
    json["choice"] = choice;
  if (!result.checkpoint.empty()) json["checkpoint"] = result.checkpoint.string();
  if (plan.warning) json["warning"] = *plan.warning;
  std::vector<std::string> notes = plan.notes;
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  if (!notes.empty()) json["notes"] = notes;
  return indented(json);
}

}  // namespace headroom
