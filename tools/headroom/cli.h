// The command line: one function that parses, runs a command and returns the exit code, and one per command.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

namespace headroom {

class Command;

// 0 done, 1 failed while running, 2 bad usage or input, 3 does not fit. An error is one line on `err`.
int run_cli(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

// Indented, with a line end. Text that is no UTF-8, such as a path, has U+FFFD where it is not.
void print_json(const nlohmann::ordered_json& json, std::ostream& out);

// Each adds its options and what it does; a command that can fail without an error sets the exit code.
void add_devices(Command app, std::ostream& out);
void add_plan(Command app, std::ostream& out, int& exit_code);
void add_profile(Command app, std::ostream& out);
void add_train(Command app, std::ostream& out);
void add_bench_memory(Command app, std::ostream& out);
void add_bench_step(Command app, std::ostream& out);
void add_bench_attention(Command app, std::ostream& out);
void add_bench_loss(Command app, std::ostream& out);
void add_bench_ring(Command app, std::ostream& out);
void add_verify_attention(Command app, std::ostream& out, int& exit_code);
void add_verify_loss(Command app, std::ostream& out, int& exit_code);
void add_verify_memory(Command app, std::ostream& out, int& exit_code);
void add_verify_ring(Command app, std::ostream& out, int& exit_code);

}  // namespace headroom
