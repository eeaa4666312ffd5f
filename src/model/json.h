// JSON that somebody else wrote: bounded in depth, no key twice, values fetched by key with a message that
// names key, value and what would be accepted. Nothing of nlohmann's throws out of here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace headroom {

using Json = nlohmann::json;

// An object; `source` opens every message: a path, or what the text is.
[[nodiscard]] Json parse_json_object(std::string_view text, std::string_view source);

// A value in a message: on one line, and not too long.
[[nodiscard]] std::string shown(const Json& value);

// A name in a message, with whatever a terminal would take for something else escaped.
[[nodiscard]] std::string in_quotes(std::string_view text);

// Typed access to one object. A key that is absent or null is missing, to all but has().
class JsonReader {
 public:
  JsonReader(const Json& object, std::string source) : object_(&object), source_(std::move(source)) {}

  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] const Json& object() const { return *object_; }
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return object_->contains(key); }

  [[nodiscard]] std::int64_t integer(std::string_view key) const;
  [[nodiscard]] std::uint64_t natural(std::string_view key) const;
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key) const;

  [[nodiscard]] std::optional<std::int64_t> maybe_integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> maybe_number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> maybe_boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> maybe_text(std::string_view key) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view accepted) const;

 private:
  const Json* object_;
  std::string source_;
};

// Two-space indented text; a string that is no UTF-8 is refused.
template <class AnyJson>
[[nodiscard]] std::string to_text(const AnyJson& value, std::string_view what);

}  // namespace headroom
