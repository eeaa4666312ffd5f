// headroom verify memory: rehearses a small training program, packs it, runs it inside the plan, and lays
// what happened beside what was planned.
#include <fmt/ostream.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/device.h"
#include "headroom/report.h"
#include "memory_program.h"
#include "progress.h"

namespace headroom {
namespace {

struct Options {
  std::string device = "cpu";
  std::optional<std::int64_t> budget;
  int steps = 50;
  int threads = 0;
  bool json = false;
};

struct Outcome {
  Layout layout;
  bool fits = true;
  std::int64_t budget_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t reserved_host_bytes = 0;
  std::int64_t live_peak_bytes = 0;
  std::int64_t events = 0;            // of one run of every phase
  std::int64_t differing_events = 0;  // between rehearsal and run
  double first_loss = 0;
  double last_loss = 0;
  bool learned = false;    // the loss has halved, or there were too few steps to ask for it
  bool same_bits = false;  // with one thread as with all

  [[nodiscard]] bool ok() const {
    return differing_events == 0 && reserved_bytes == layout.reserved(Space::device) &&
           reserved_host_bytes == layout.reserved(Space::host) &&
           live_peak_bytes == layout.rehearsal.usage(Space::device).peak_bytes && learned && same_bits;
  }
};

Layout rehearse(const DeviceDescription& description) {
  Context context(description);
  {
    MemoryProgram program(context, {});
    program.step();
    program.save({});
  }
  return make_layout(std::move(context).take_ledger());
}

std::int64_t count_differences(const Ledger& rehearsed, const Ledger& run, std::int64_t& events) {
  std::int64_t differing = 0;
  for (const Ledger::Trace& phase : rehearsed.phases()) {
    const auto found = run.find_phase(phase.phase);
    const std::vector<Event> none;
    const std::vector<Event>& other = found ? run.phases()[*found].events : none;
    const std::size_t length = std::max(phase.events.size(), other.size());
    events += static_cast<std::int64_t>(length);
    for (std::size_t i = 0; i < length; ++i) {
      differing += i >= phase.events.size() || i >= other.size() || phase.events[i] != other[i];
    }
  }
  return differing;
}

std::filesystem::path temporary_file() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  check(!error, "there is no folder for temporary files: {}; TMPDIR names one", error.message());
  return folder / fmt::format("headroom-verify-{}.bin", getpid());
}

std::vector<float> run_program(Outcome& outcome, Backend& backend, const Options& options) {
  Context context(backend, outcome.layout);
  outcome.reserved_bytes = backend.reserved_bytes(Space::device);
  outcome.reserved_host_bytes = backend.reserved_bytes(Space::host);
  const std::filesystem::path saved = temporary_file();
  MemoryProgram program(context, {});
  Progress progress("step");
  for (int i = 0; i < options.steps; ++i) {
    progress.at(i, options.steps);
    outcome.last_loss = program.step();
    if (i == 0) outcome.first_loss = outcome.last_loss;
  }
  constexpr int kStepsToLearn = 30;
  outcome.learned = options.steps < kStepsToLearn || outcome.last_loss < outcome.first_loss / 2;
  program.save(saved);
  std::error_code ignored;  // it is in a folder for files that nobody needs any more
  std::filesystem::remove(saved, ignored);
  outcome.live_peak_bytes = context.ledger().usage(Space::device).peak_bytes;
  outcome.events = 0;
  outcome.differing_events = count_differences(outcome.layout.rehearsal, context.ledger(), outcome.events);
  return program.parameters();
}

Outcome verify(const Options& options) {
  const Device device = parse_device(options.device);
  const ListedDevice listed = find_device(device);
  check(device.kind == DeviceKind::cpu, "device '{}': verify memory runs its program on cpu", options.device);
  Outcome outcome;
  outcome.budget_bytes = device_budget(listed, options.budget).bytes;
  outcome.layout = rehearse(listed.description);
  const std::int64_t needed = outcome.layout.reserved(Space::device) + outcome.layout.reserved(Space::host);
  outcome.fits = needed <= outcome.budget_bytes;
  if (!outcome.fits) return outcome;

  const std::unique_ptr<Backend> one_thread = open_backend(device, 1);
  const std::vector<float> reference = run_program(outcome, *one_thread, options);
  const std::unique_ptr<Backend> backend = open_backend(device, options.threads);
  outcome.same_bits = run_program(outcome, *backend, options) == reference;
  return outcome;
}

nlohmann::ordered_json to_json(const Outcome& o) {
  nlohmann::ordered_json json = {
      {"ok", o.fits && o.ok()},
      {"fits", o.fits},
      {"budget_bytes", o.budget_bytes},
      {"planned_bytes", o.layout.reserved(Space::device)},
      {"planned_host_bytes", o.layout.reserved(Space::host)},
      {"planned_live_peak_bytes", o.layout.rehearsal.usage(Space::device).peak_bytes}};
  if (o.fits) {
    json["reserved_bytes"] = o.reserved_bytes;
    json["reserved_host_bytes"] = o.reserved_host_bytes;
    json["live_peak_bytes"] = o.live_peak_bytes;
    json["events"] = o.events;
    json["differing_events"] = o.differing_events;
    json["first_loss"] = o.first_loss;
    json["last_loss"] = o.last_loss;
    json["same_bits"] = o.same_bits;
  }
  json["by_stage"] = nlohmann::ordered_json::array();
  for (const StageUsage& stage : usage_by_stage(o.layout.rehearsal, Space::device)) {
    json["by_stage"].push_back({{"phase", name(stage.phase)},
                                {"stage", stage.stage.text()},
                                {"live_bytes", stage.live_bytes},
                                {"peak_bytes", stage.peak_bytes}});
  }
  return json;
}

void print_stages(const Ledger& rehearsal, std::ostream& out) {
  Table table({"phase and stage", "live bytes at its end", "peak bytes"});
  for (const StageUsage& stage : usage_by_stage(rehearsal, Space::device)) {
    table.add({stage.stage.empty() ? std::string(name(stage.phase)) : "  " + stage.stage.text(),
               format_count(stage.live_bytes), format_count(stage.peak_bytes)});
  }
  out << table.text();
}

void print(const Outcome& o, const Options& options, std::ostream& out) {
  out << "A two-layer MLP with gradient accumulation, an asynchronous copy and a save phase, rehearsed:\n\n";
  print_stages(o.layout.rehearsal, out);
  const std::int64_t caching =
      simulate_caching_allocator(lifetimes(o.layout.rehearsal, Space::device)).reserved_peak_bytes;
  Table table({"", "planned", "happened"});
  table.add({"arena bytes", format_count(o.layout.reserved(Space::device)), format_count(o.reserved_bytes)});
  table.add({"host staging bytes", format_count(o.layout.reserved(Space::host)),
             format_count(o.reserved_host_bytes)});
  table.add({"live peak bytes", format_count(o.layout.rehearsal.usage(Space::device).peak_bytes),
             format_count(o.live_peak_bytes)});
  table.add({"events of all phases", format_count(o.events),
             o.differing_events == 0 ? "the same" : format_count(o.differing_events) + " differ"});
  out << "\n" << table.text();
  fmt::print(out, "\nA caching allocator would reserve {} for it.\n", format_bytes(caching));
  fmt::print(out, "Loss {:.4f} -> {:.4f} in {} steps; {} on one thread and on all.\n", o.first_loss,
             o.last_loss, options.steps, o.same_bits ? "the same bits" : "DIFFERENT bits");
  fmt::print(out, "verify memory: {}\n", o.ok() ? "passed" : "FAILED");
}

}  // namespace

void add_verify_memory(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<Options>();
  app.add_text("--device", options->device, "Where to run it: cpu");
  app.add_budget("--budget", options->budget, "Bytes it may take, such as 64MiB (default: what is free now)");
  app.add_whole("--steps", options->steps, 1, 1'000'000, "Training steps");
  add_threads_option(app, options->threads);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer("Example:\n  headroom verify memory --budget 64MiB");
  app.callback([options, &out, &exit_code] {
    const Outcome outcome = verify(*options);
    if (options->json) {
      print_json(to_json(outcome), out);
    } else if (outcome.fits) {
      print(outcome, *options, out);
    }
    if (!outcome.fits) {
      const std::int64_t arena = outcome.layout.reserved(Space::device);
      const std::int64_t host = outcome.layout.reserved(Space::host);
      fail(ErrorKind::memory,
           "does not fit: arena {} + host staging {} = {} bytes, the budget is {}; {} are missing",
           format_count(arena), format_count(host), format_count(arena + host),
           format_count(outcome.budget_bytes), format_count(arena + host - outcome.budget_bytes));
    }
    exit_code = outcome.ok() ? 0 : static_cast<int>(ErrorKind::runtime);
  });
}

}  // namespace headroom
