// What one command takes. Every option of every command is declared through this class, so that its value is
// read by the strict parsers of core/parse.h and by nothing else; CLI11 only finds the names and prints help.
// A value that is refused is an Error that begins with the option's name.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/parse.h"

namespace headroom {

// Largest value of an option that counts tokens, sequences or parts of them: 32-bit indices reach as far.
inline constexpr std::int64_t kMostTokens = 2'147'483'647;
// Largest value of an option that counts anything else.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 40;

class Command {
 public:
  Command(CLI::App& app) : app_(&app) {}  // implicit: it is that app, with fewer ways to add to it

  // Targets are a value, whose default `--help` shows, or an optional. A whole number or a text that stands
  // outside what is accepted (0 threads, an empty name) means "not given" and is not shown.

  // A text that is not empty: a name, or a path.
  CLI::Option* add_text(const std::string& name, std::string& target, const std::string& help);
  CLI::Option* add_text(const std::string& name, std::optional<std::string>& target, const std::string& help);
  // One of a few names.
  CLI::Option* add_choice(const std::string& name, std::string& target, std::vector<std::string> choices,
                          const std::string& help);
  CLI::Option* add_choice(const std::string& name, std::optional<std::string>& target,
                          std::vector<std::string> choices, const std::string& help);
  // A file to be written, which begins with `beginning`; refused at once where it could not be, and where a
  // file that begins otherwise has the name: that is somebody's data or weights.
  CLI::Option* add_output(const std::string& name, std::optional<std::string>& target,
                          std::string_view beginning, const std::string& help);

  // A whole number from `least` to `most`.
  template <std::integral Whole>
  CLI::Option* add_whole(const std::string& name, Whole& target, std::int64_t least, std::int64_t most,
                         const std::string& help) {
    CLI::Option* option = add(name, "N", help, [&target, name, least, most](std::string_view value) {
      target = static_cast<Whole>(parse_whole(name, value, least, most));
    });
    if (std::cmp_greater_equal(target, least)) option->default_str(std::to_string(target));
    return option;
  }
  CLI::Option* add_whole(const std::string& name, std::optional<std::int64_t>& target, std::int64_t least,
                         std::int64_t most, const std::string& help);
  // A whole number from 0 to 2^64 - 1.
  CLI::Option* add_seed(const std::string& name, std::uint64_t& target, const std::string& help);
  CLI::Option* add_number(const std::string& name, double& target, const NumberRange& range,
                          const std::string& help);
  // A span of time in seconds.
  CLI::Option* add_seconds(const std::string& name, double& target, const SecondsRange& range,
                           const std::string& help);
  CLI::Option* add_seconds(const std::string& name, std::optional<double>& target, const SecondsRange& range,
                           const std::string& help);
  // A size above zero.
  CLI::Option* add_budget(const std::string& name, std::optional<std::int64_t>& target,
                          const std::string& help);

  // One or several values with commas between them.
  CLI::Option* add_list(const std::string& name, std::vector<std::int64_t>& target, std::int64_t least,
                        std::int64_t most, const std::string& help);
  CLI::Option* add_list(const std::string& name, std::vector<std::string>& target, const std::string& help);

  CLI::Option* add_flag(const std::string& name, bool& target, const std::string& help);
  // The one argument without a name.
  CLI::Option* add_argument(const std::string& name, std::optional<std::string>& target,
                            const std::string& help);

  void footer(const std::string& text);
  void callback(std::function<void()> body);

  [[nodiscard]] bool given(const std::string& option) const;
  // Refuses what a mode of the command would ignore: every option that was given and is not among those that
  // the mode reads. `mode` is how it was asked for, such as "--runtime pytorch".
  void check_read(std::string_view mode, std::initializer_list<std::string_view> read) const;
  // Refuses options that only `mode` reads, where another one was asked for.
  void check_only_with(std::string_view mode, std::initializer_list<std::string_view> options) const;

 private:
  CLI::Option* add(const std::string& name, const std::string& type, const std::string& help,
                   std::function<void(std::string_view)> read);

  CLI::App* app_;
};

// --threads N; 0 is every core.
void add_threads_option(Command command, int& threads);
// --state, the same for every command that trains or plans training.
void add_state_option(Command command, std::string& state);
// --html FILE, the same for every command that has a page.
void add_html_option(Command command, std::optional<std::string>& path);

// Checks what CLI11 would let pass: an option that is given twice, one without its value (`--budget=`,
// `--budget --json`, `--budget` at the end), and a flag with one (`--json=yes`).
void check_spelling(const CLI::App& app, int argc, const char* const* argv);

}  // namespace headroom
