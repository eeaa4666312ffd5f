// headroom profile: runs real steps of the planned strategy and lays what happened beside what was planned:
// bytes by stage, time by kernel, resident memory beside the arena.
#include <fmt/ostream.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/core/text.h"
#include "headroom/jobs.h"
#include "run_options.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

struct Options {
  ProfileOptions profile;
  std::optional<std::string> html;
  bool json = false;
};

void print(const FreeMemory& free, std::ostream& out) {
  fmt::print(out, "free      {} before the arena, {} with it, {} after {}\n", format_bytes(free.before_bytes),
             format_bytes(free.reserved_bytes), format_bytes(free.after_steps.back()),
             free.constant() ? "every step" : "the last step: it changed from step to step");
}

void print(const Profile& profile, std::ostream& out) {
  const Layout& layout = profile.fit.layout;
  const std::int64_t arenas = layout.reserved(Space::device) + layout.reserved(Space::host);
  fmt::print(out, "{}, {} tokens: {}\n", profile.options.model,
             format_count(profile.options.batch * profile.options.context), describe(profile.fit.strategy));
  print_implementations(profile.implementations, 10, out);
  if (!profile.budgets.empty()) fmt::print(out, "budget    {}\n", profile.budgets);
  fmt::print(out, "arena     {} bytes planned, {} reserved\n", format_count(layout.reserved(Space::device)),
             format_count(profile.reserved_bytes));
  fmt::print(out, "live peak {} bytes planned, {} seen\n",
             format_count(layout.rehearsal.usage(Space::device).peak_bytes),
             format_count(profile.live_peak_bytes));
  if (profile.free) {
    print(*profile.free, out);
  } else {
    fmt::print(out, "resident  {}; outside the arenas {}: the program {}, the rest {}\n",
               format_bytes(profile.resident_peak_bytes), format_bytes(profile.resident_peak_bytes - arenas),
               format_bytes(profile.resident_before_bytes),
               format_bytes(std::max<std::int64_t>(
                   profile.resident_peak_bytes - arenas - profile.resident_before_bytes, 0)));
  }
  fmt::print(out, "step      {:.1f} ms, predicted {:.1f} ms\n", 1e3 * profile.step_seconds,
             1e3 * profile.predicted_seconds);
  if (profile.peak_flops)
    fmt::print(out, "peak      {:.0f} GFLOP/s, {}\n", *profile.peak_flops / 1e9, profile.peak_source);
  out << "\n";
  Table stages({"stage", "planned live", "live", "planned peak", "peak", "kernels ms"});
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.add({std::string(name(profile.planned[i].stage)), format_bytes(profile.planned[i].live_bytes),
                format_bytes(profile.measured[i].live_bytes), format_bytes(profile.planned[i].peak_bytes),
                format_bytes(profile.measured[i].peak_bytes),
                fmt::format("{:.2f}", 1e3 * profile.stage_seconds[i])});
  }
  out << stages.text() << "\n";
  out << kernel_table(profile).text();
  if (profile.options.trace)
    fmt::print(out, "\ntrace: {}; chrome://tracing and Perfetto open it\n", *profile.options.trace);
}

void run(const Options& options, std::ostream& out) {
  const std::optional<std::string>& trace = options.profile.trace;
  if (options.html && trace) {
    check(fs::path(*options.html).lexically_normal() != fs::path(*trace).lexically_normal(),
          "--html and --trace name the same file {}", quote(*options.html));
  }
  const Profile profile = profile_step(options.profile);
  if (options.html) write_html(*options.html, profile_page(profile));
  if (options.json) {
    out << json(profile);
  } else {
    print(profile, out);
  }
}

}  // namespace

void add_profile(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  ProfileOptions& profile = options->profile;
  app.add_text("--model", profile.model, "A built-in name (random weights) or a Hugging Face folder")
      ->required();
  app.add_whole("--context", profile.context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--batch", profile.batch, 1, kMostTokens, "Sequences at a time");
  app.add_whole("--accumulation", profile.accumulation, 1, kMostTokens, "Batches per update");
  app.add_budget("--budget", profile.budget_bytes,
                 "Bytes it may take, such as 512MiB (default: what is free now)");
  add_host_budget_option(app, profile.host_budget_bytes);
  add_pin_options(app, profile.pins);
  app.add_text("--attention", profile.attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", profile.dtype, "f32 or bf16 (default: what is fast on the device)");
  add_state_option(app, profile.state);
  app.add_whole("--steps", profile.steps, 1, 1000, "Steps to run, after one that does not count");
  app.add_output("--trace", profile.trace, "{\"traceEvents\"",
                 "Write the last step as a Chrome trace (JSON) to FILE");
  app.add_text("--device", profile.device, "Where to run: cpu or cuda:N");
  add_threads_option(app, profile.threads);
  add_html_option(app, options->html);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer(
      "Examples:\n  headroom profile --model demo --context 16384 --budget 512MiB --trace step.json\n"
      "  headroom profile --model qwen3-4b --context 32768 --device cuda:0");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
