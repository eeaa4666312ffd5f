#include "command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>

#include "headroom/core/files.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

std::string text_value(const std::string& name, std::string_view value) {
  check(!value.empty(), "{} '' is empty; it needs a value", name);
  return std::string(value);
}

std::string chosen(const std::string& name, const std::vector<std::string>& choices, std::string_view value) {
  check(std::ranges::find(choices, value) != choices.end(), "{} {} is unknown; use {}", name, quote(value),
        fmt::join(choices, ", "));
  return std::string(value);
}

}  // namespace

CLI::Option* Command::add(const std::string& name, const std::string& type, const std::string& help,
                          std::function<void(std::string_view)> read) {
  const auto first = [read = std::move(read)](const CLI::results_t& values) {
    read(values.front());
    return true;
  };
  return app_->add_option(name, first, help)->type_name(type);
}

CLI::Option* Command::add_text(const std::string& name, std::string& target, const std::string& help) {
  CLI::Option* option =
      add(name, "TEXT", help, [&target, name](std::string_view value) { target = text_value(name, value); });
  if (!target.empty()) option->default_str(target);
  return option;
}

CLI::Option* Command::add_text(const std::string& name, std::optional<std::string>& target,
                               const std::string& help) {
  return add(name, "TEXT", help,
             [&target, name](std::string_view value) { target = text_value(name, value); });
}

CLI::Option* Command::add_choice(const std::string& name, std::string& target,
                                 std::vector<std::string> choices, const std::string& help) {
  const std::string type = fmt::format("{}", fmt::join(choices, "|"));
  return add(name, type, help,
             [&target, name, choices = std::move(choices)](std::string_view value) {
               target = chosen(name, choices, value);
             })
      ->default_str(target);
}

CLI::Option* Command::add_choice(const std::string& name, std::optional<std::string>& target,
                                 std::vector<std::string> choices, const std::string& help) {
  const std::string type = fmt::format("{}", fmt::join(choices, "|"));
  return add(name, type, help, [&target, name, choices = std::move(choices)](std::string_view value) {
    target = chosen(name, choices, value);
  });
}

CLI::Option* Command::add_output(const std::string& name, std::optional<std::string>& target,
                                 std::string_view beginning, const std::string& help) {
  return add(name, "FILE", help, [&target, name, beginning](std::string_view value) {
    target = text_value(name, value);
    check_can_write(*target);
    std::string there(beginning.size(), '\0');
    const Descriptor file = open_to_read(*target);
    const std::int64_t bytes = file ? read_at(file, std::as_writable_bytes(std::span(there)), 0) : 0;
    there.resize(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)));
    check(there.empty() || there == beginning,
          "{} {} is there and is not what {} writes; choose a name that is free, or remove the file", name,
          quote(*target), name);
  });
}

CLI::Option* Command::add_whole(const std::string& name, std::optional<std::int64_t>& target,
                                std::int64_t least, std::int64_t most, const std::string& help) {
  return add(name, "N", help, [&target, name, least, most](std::string_view value) {
    target = parse_whole(name, value, least, most);
  });
}

CLI::Option* Command::add_seed(const std::string& name, std::uint64_t& target, const std::string& help) {
  return add(name, "N", help, [&target, name](std::string_view value) { target = parse_seed(name, value); })
      ->default_str(std::to_string(target));
}

CLI::Option* Command::add_number(const std::string& name, double& target, const NumberRange& range,
                                 const std::string& help) {
  return add(name, "X", help,
             [&target, name, range](std::string_view value) { target = parse_number(name, value, range); })
      ->default_str(fmt::format("{}", target));
}

CLI::Option* Command::add_seconds(const std::string& name, double& target, const SecondsRange& range,
                                  const std::string& help) {
  return add(name, "TIME", help,
             [&target, name, range](std::string_view value) { target = parse_seconds(name, value, range); })
      ->default_str(fmt::format("{:g}s", target));
}

CLI::Option* Command::add_seconds(const std::string& name, std::optional<double>& target,
                                  const SecondsRange& range, const std::string& help) {
  return add(name, "TIME", help,
             [&target, name, range](std::string_view value) { target = parse_seconds(name, value, range); });
}

CLI::Option* Command::add_budget(const std::string& name, std::optional<std::int64_t>& target,
                                 const std::string& help) {
  return add(name, "SIZE", help,
             [&target, name](std::string_view value) { target = parse_budget(value, name); });
}

CLI::Option* Command::add_list(const std::string& name, std::vector<std::int64_t>& target, std::int64_t least,
                               std::int64_t most, const std::string& help) {
  return add(name, "N,...", help,
             [&target, name, least, most](std::string_view value) {
               target.clear();
               for (const std::string_view part : parse_list(fmt::format("{} {}", name, quote(value)), value))
                 target.push_back(parse_whole(name, part, least, most));
             })
      ->default_str(fmt::format("{}", fmt::join(target, ",")));
}

CLI::Option* Command::add_list(const std::string& name, std::vector<std::string>& target,
                               const std::string& help) {
  return add(name, "TEXT,...", help,
             [&target, name](std::string_view value) {
               const auto parts = parse_list(fmt::format("{} {}", name, quote(value)), value);
               target.assign(parts.begin(), parts.end());
             })
      ->default_str(fmt::format("{}", fmt::join(target, ",")));
}

CLI::Option* Command::add_flag(const std::string& name, bool& target, const std::string& help) {
  return app_->add_flag(name, target, help);
}

CLI::Option* Command::add_argument(const std::string& name, std::optional<std::string>& target,
                                   const std::string& help) {
  const auto only = [&target](const CLI::results_t& values) {
    target = values.front();
    return true;
  };
  return app_->add_option(name, only, help)->type_name("TEXT");
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::callback(std::function<void()> body) {
  app_->callback(std::move(body));
}

bool Command::given(const std::string& option) const {
  return app_->count(option) > 0;
}

void Command::check_read(std::string_view mode, std::initializer_list<std::string_view> read) const {
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0) continue;
    check(std::ranges::find(read, name) != read.end(), "{} means nothing with {}; it reads {}", name, mode,
          fmt::join(read, ", "));
  }
}

void Command::check_only_with(std::string_view mode, std::initializer_list<std::string_view> options) const {
  for (const std::string_view option : options) {
    check(!given(std::string(option)), "{} means nothing without {}", option, mode);
  }
}

void add_threads_option(Command command, int& threads) {
  command.add_whole("--threads", threads, 1, 4096, "Threads to run on (default: every core)");
}

void add_state_option(Command command, std::string& state) {
  command.add_choice(
      "--state", state, {"f32", "bf16", "8bit"},
      "Precision of the training state: f32; bf16 (no master weights, stochastic rounding); 8bit "
      "(the same with 8-bit moments)");
}

void add_html_option(Command command, std::optional<std::string>& path) {
  command.add_output("--html", path, "<!doctype html>", "Also write an HTML report to FILE");
}

void check_spelling(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  std::set<const CLI::Option*> seen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return;  // names end here
    const auto inner =
        command->get_subcommands([&](const CLI::App* one) { return one->get_name() == argument; });
    if (!inner.empty()) {
      command = inner.front();
      continue;
    }
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string name(argument.substr(0, equals));
    const CLI::Option* option = name.starts_with("--") ? command->get_option_no_throw(name) : nullptr;
    if (option == nullptr) continue;  // not ours to refuse: CLI11 names what it does not know
    check(seen.insert(option).second, "{} is given twice", name);
    if (option->get_items_expected_max() == 0) {
      check(equals == argument.size(), "{} takes no value; {} gives it one", name, quote(argument));
    } else if (equals < argument.size()) {
      check(equals + 1 < argument.size(), "{} '' is empty; it needs a value", name);
    } else {
      ++i;
      check(i < argc, "{} needs a value", name);
      check(!std::string_view(argv[i]).starts_with("--"),
            "{} needs a value, and {} is an option; a value that begins so is written {}={}", name,
            quote(argv[i]), name, printable(argv[i]));
    }
  }
}

}  // namespace headroom
