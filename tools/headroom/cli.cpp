#include "cli.h"

#include <fmt/ostream.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>
#include <thread>

#include "command.h"
#include "commit.h"
#include "headroom/comm.h"
#include "headroom/core/error.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

constexpr int kBadUsage = static_cast<int>(ErrorKind::input);
constexpr int kFailed = static_cast<int>(ErrorKind::runtime);
constexpr int kNoMemory = static_cast<int>(ErrorKind::memory);

constexpr const char* kExamples = R"(Examples:
  headroom devices                        what is here and what is fast on it
  headroom plan --model qwen3-4b --context 131072 --device h200
  headroom train --model demo --data recall --context 16384 --budget 512MiB --steps 150 --out run
  headroom profile --model demo --context 16384 --budget 512MiB
  headroom verify memory --budget 64MiB   rehearse a small training program, run it, compare
  headroom bench memory                   the packer beside allocators that cannot see ahead
  headroom verify attention               every implementation against the fp64 reference
  headroom bench attention --seq 1024,4096 --mask causal,window:512
  headroom verify loss                    the same for linear cross-entropy, and how much a budget chunks it
  headroom bench loss --tokens 1024,4096 --vocab 151936 --impl fused,standard

Exit codes: 0 done, 1 failed while running, 2 bad usage or input, 3 does not fit the budget.)";

// The one line of an error: whatever others wrote into it cannot end it, color it or make it endless.
void print_error(std::ostream& err, std::string_view message) {
  constexpr std::size_t kLongest = 1500;
  fmt::print(err, "headroom: {}\n", shortened(printable(message), kLongest));
}

// The names of an app's commands, for messages that say what would be accepted.
std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// The innermost command that was given: whose help or commands a message is about.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* inner = &app;
  while (!inner->get_subcommands().empty()) inner = inner->get_subcommands().back();
  return *inner;
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? "headroom" : path_of(*app.get_parent()) + " " + app.get_name();
}

// CLI11's errors, in words that name what would be accepted.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> rest = app.remaining(true);
  const std::string names = command_names(command);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !names.empty()) {
    return fmt::format("{} needs a command: {}{}", path_of(command), names,
                       rest.empty() ? "" : fmt::format(", and {} is none", quote(rest.front())));
  }
  if (!rest.empty()) {
    return fmt::format("{} does not take {}; see {} --help", path_of(command), quote(rest.front()),
                       path_of(command));
  }
  return fmt::format("{}: {}; see {} --help", path_of(command), error.what(), path_of(command));
}

}  // namespace

void print_json(const nlohmann::ordered_json& json, std::ostream& out) {
  out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

int run_cli(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App app("Headroom: long-context attention and training inside a memory budget.", "headroom");
  app.set_version_flag("--version", "headroom " HEADROOM_VERSION " (" HEADROOM_COMMIT ")");
  app.require_subcommand(1);
  app.footer(kExamples);
  int exit_code = 0;

  add_devices(
      *app.add_subcommand("devices", "What is here, what is fast on it, which dtype is the default and why"),
      out);
  add_plan(
      *app.add_subcommand("plan", "What a step would take, whether it fits, the largest context that does"),
      out, exit_code);
  add_train(*app.add_subcommand("train", "Rehearse, reserve, train; checkpoints, resume, metrics"), out);
  add_profile(*app.add_subcommand("profile", "Run real steps, and lay what happened beside what was planned"),
              out);
  CLI::App* bench = app.add_subcommand("bench", "Time, memory and error, side by side");
  bench->require_subcommand(1);
  add_bench_memory(*bench->add_subcommand("memory", "The packer beside allocators that cannot see ahead"),
                   out);
  add_bench_attention(
      *bench->add_subcommand("attention", "Time, memory and error of attention, side by side"), out);
  add_bench_loss(
      *bench->add_subcommand("loss", "Time, memory and error of linear cross-entropy, side by side"), out);
  add_bench_ring(
      *bench->add_subcommand("ring", "Attention over ranks: time, memory and traffic of each rank"), out);
  add_bench_step(*bench->add_subcommand("step", "One training step of a model, whole and in its kernels"),
                 out);
  CLI::App* verify =
      app.add_subcommand("verify", "Proof on this machine that what is planned is what happens");
  verify->require_subcommand(1);
  add_verify_attention(
      *verify->add_subcommand("attention", "Every implementation against the fp64 reference"), out,
      exit_code);
  add_verify_loss(*verify->add_subcommand("loss", "Every implementation of the loss against fp64"), out,
                  exit_code);
  add_verify_memory(*verify->add_subcommand("memory", "Rehearse a small training program, run it, compare"),
                    out, exit_code);
  add_verify_ring(*verify->add_subcommand("ring", "Attention over ranks against the fp64 reference"), out,
                  exit_code);

  try {
    check_spelling(app, argc, argv);
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done, out, err);
  } catch (const CLI::ParseError& error) {
    print_error(err, describe(error, app));
    return kBadUsage;
  } catch (const OtherRankFailed& error) {
    // The process of the rank that ended the run says why. mpirun ends it as soon as another one returns.
    if (rank_is_launched()) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    } else {
      print_error(err, error.what());
    }
    return static_cast<int>(error.kind());
  } catch (const Error& error) {
    print_error(err, error.what());
    return static_cast<int>(error.kind());
  } catch (const std::bad_alloc&) {
    print_error(err, "out of memory for bookkeeping");
    return kNoMemory;
  } catch (const std::system_error& error) {  // also what std::filesystem throws
    print_error(err, fmt::format("the system refused a call: {}", error.code().message()));
    return kFailed;
  } catch (const std::exception&) {  // what its text says is for programmers
    print_error(err, "this is a fault of the program itself; please report the command that led to it");
    return kFailed;
  }
}

}  // namespace headroom
