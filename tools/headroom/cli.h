// The command line: one function that parses, runs a command and returns the exit code, and one per command.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace headroom {

// 0 done, 1 failed while running, 2 bad usage or input, 3 does not fit. An error is one line on `err`.
int run_cli(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

// --html FILE, the same for every command that has a page; a folder that is not there is refused before any
// work.
void add_html_option(CLI::App& app, std::optional<std::string>& path);

// Each adds its options and what it does; a command that can fail without an error sets the exit code.
void add_devices(CLI::App& app, std::ostream& out);
void add_plan(CLI::App& app, std::ostream& out, int& exit_code);
void add_profile(CLI::App& app, std::ostream& out);
void add_train(CLI::App& app, std::ostream& out);
void add_bench_memory(CLI::App& app, std::ostream& out);
void add_bench_step(CLI::App& app, std::ostream& out);
void add_bench_attention(CLI::App& app, std::ostream& out);
void add_bench_loss(CLI::App& app, std::ostream& out);
void add_verify_attention(CLI::App& app, std::ostream& out, int& exit_code);
void add_verify_loss(CLI::App& app, std::ostream& out, int& exit_code);
void add_verify_memory(CLI::App& app, std::ostream& out, int& exit_code);

}  // namespace headroom
