// Errors with the values that were wrong. A message is one line that names what was given and what would be
// accepted; main prints it and returns the kind as the exit code. The library never prints, exits or aborts.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace headroom {

// The value is the program's exit code.
enum class ErrorKind {
  runtime = 1,  // failed while running: a call of the system failed, a run departed from its rehearsal
  input = 2,    // a person's mistake: bad usage, bad sizes, bad files
  memory = 3,   // does not fit, or the memory that was promised is held by others
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::source_location where)
      : std::runtime_error(message), kind_(kind), where_(where) {}

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::source_location where_;
};

// A format string that remembers where it was written; made implicitly from a literal.
template <class... Args>
struct LocatedFormat {
  template <class Text>
  consteval LocatedFormat(const Text& literal,
                          std::source_location location = std::source_location::current())
      : text(literal), where(location) {}

  fmt::format_string<Args...> text;
  std::source_location where;
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, LocatedFormat<std::type_identity_t<Args>...> message, Args&&... args) {
  throw Error(kind, fmt::format(message.text, std::forward<Args>(args)...), message.where);
}

// check(rank <= 5, "rank {} is over 5", rank) throws an input error unless the condition holds.
template <class... Args>
void check(bool holds, LocatedFormat<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!holds) [[unlikely]] {
    throw Error(ErrorKind::input, fmt::format(message.text, std::forward<Args>(args)...), message.where);
  }
}

}  // namespace headroom
