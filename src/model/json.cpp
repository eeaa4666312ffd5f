#include "model/json.h"

#include <limits>
#include <set>
#include <vector>

#include "headroom/core/error.h"

namespace headroom {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

Json parse_json_object(std::string_view text, std::string_view source) {
  std::vector<std::set<std::string, std::less<>>> open_objects;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    check(depth <= kMaxDepth, "{}: JSON is nested deeper than {}", source, kMaxDepth);
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      check(open_objects.back().insert(value.get<std::string>()).second, "{}: key {} is there twice", source,
            shown(value));
    }
    return true;
  };
  // The parser takes a zero byte for the end of its input.
  check(text.find('\0') == std::string_view::npos, "{}: not JSON from byte {} on", source, text.find('\0'));
  try {
    Json value = Json::parse(text, watch);
    check(value.is_object(), "{}: {} is no JSON object", source, shown(value));
    return value;
  } catch (const Json::parse_error& error) {
    fail(ErrorKind::input, "{}: not JSON from byte {} on", source, error.byte);
  } catch (const Json::exception&) {
    fail(ErrorKind::input, "{}: JSON with a number that 64 bits do not hold", source);
  }
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 60;
  // Objects and arrays may be large; what they are says enough.
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::string in_quotes(std::string_view text) {
  return shown(Json(text));
}

const Json* JsonReader::find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void JsonReader::refuse(std::string_view key, std::string_view accepted) const {
  const auto found = object_->find(key);
  if (found == object_->end()) {
    fail(ErrorKind::input, "{}: {} is missing; accepted: {}", source_, key, accepted);
  }
  fail(ErrorKind::input, "{}: {} is {}; accepted: {}", source_, key, shown(*found), accepted);
}

std::optional<std::int64_t> JsonReader::maybe_integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits) refuse(key, "a whole number");
  return value->get<std::int64_t>();
}

std::optional<double> JsonReader::maybe_number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonReader::maybe_boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonReader::maybe_text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a text");
  return value->get<std::string>();
}

std::int64_t JsonReader::integer(std::string_view key) const {
  const auto value = maybe_integer(key);
  if (!value) refuse(key, "a whole number");
  return *value;
}

std::uint64_t JsonReader::natural(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number_unsigned()) refuse(key, "a whole number from 0 on");
  return value->get<std::uint64_t>();
}

double JsonReader::number(std::string_view key) const {
  const auto value = maybe_number(key);
  if (!value) refuse(key, "a number");
  return *value;
}

std::string JsonReader::text(std::string_view key) const {
  const auto value = maybe_text(key);
  if (!value) refuse(key, "a text");
  return *value;
}

template <class AnyJson>
std::string to_text(const AnyJson& value, std::string_view what) {
  try {
    return value.dump(2) + "\n";
  } catch (const Json::exception&) {
    fail(ErrorKind::input, "{} holds text that is no UTF-8", what);
  }
}
template std::string to_text(const Json&, std::string_view);
template std::string to_text(const nlohmann::ordered_json&, std::string_view);

}  // namespace headroom
