#include "headroom/core/parse.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "headroom/core/error.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes the digits at the front away and returns them.
std::string_view take_digits(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  const std::string_view digits(text.begin(), end);
  text.remove_prefix(digits.size());
  return digits;
}

bool is_whole(std::string_view digits) {
  return !digits.empty() && (digits.size() == 1 || digits.front() != '0');
}

// Whether the text is a number of the grammar, exponents included.
bool is_number(std::string_view text) {
  if (!is_whole(take_digits(text))) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (take_digits(text).empty()) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (take_digits(text).empty()) return false;
  }
  return text.empty();
}

template <class Number>
bool read(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

template <class Whole>
Whole parse_digits(std::string_view what, std::string_view text, Whole least, Whole most) {
  std::string_view rest = text;
  Whole value = 0;
  const bool whole = is_whole(take_digits(rest)) && rest.empty();
  check(whole && read(text, value) && value >= least && value <= most,
        "{} {} has to be a whole number from {} to {}, in digits without leading zeros", what, quote(text),
        least, most);
  return value;
}

}  // namespace

std::int64_t parse_whole(std::string_view what, std::string_view text, std::int64_t least,
                         std::int64_t most) {
  return parse_digits(what, text, least, most);
}

std::uint64_t parse_seed(std::string_view what, std::string_view text) {
  return parse_digits<std::uint64_t>(what, text, 0, std::numeric_limits<std::uint64_t>::max());
}

double parse_number(std::string_view what, std::string_view text, const NumberRange& range) {
  if (range.or_infinity && text == "inf") return std::numeric_limits<double>::infinity();
  double value = 0;
  const bool inside = is_number(text) && read(text, value) && value <= range.most &&
                      (range.above ? value > range.least : value >= range.least);
  check(inside, "{} {} has to be a number {} {} {} {}, such as 0.25 or 3e-4{}", what, quote(text),
        range.above ? "above" : "from", range.least, range.above ? "and up to" : "to", range.most,
        range.or_infinity ? ", or inf" : "");
  return value;
}

double parse_seconds(std::string_view what, std::string_view text, const SecondsRange& range) {
  struct Unit {
    std::string_view name;
    double count;    // of units in a second, or
    double seconds;  // in a unit: one of the two is 1, so that 5us is the double 5e-6
  };
  constexpr std::array kUnits = {Unit{"ns", 1e9, 1}, Unit{"us", 1e6, 1}, Unit{"ms", 1e3, 1},
                                 Unit{"s", 1, 1},    Unit{"min", 1, 60}, Unit{"h", 1, 3600}};
  std::string_view unit_name = text;
  const auto number_end = std::ranges::find_if_not(text, [](char c) { return is_digit(c) || c == '.'; });
  const std::string_view number(text.begin(), number_end);
  unit_name.remove_prefix(number.size());
  const auto unit = std::ranges::find(kUnits, unit_name, &Unit::name);
  double value = 0;
  const bool understood = unit != kUnits.end() && is_number(number) && read(number, value);
  if (understood) value = value * unit->seconds / unit->count;
  check(understood && value <= range.most && (range.above ? value > range.least : value >= range.least),
        "{} {} has to be a time {} {:.12g} s {} {:.12g} s with one of the units ns, us, ms, s, min and h, "
        "such as "
        "20s",
        what, quote(text), range.above ? "above" : "from", range.least, range.above ? "and up to" : "to",
        range.most);
  return value;
}

std::vector<std::string_view> parse_list(std::string_view what, std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (bool more = true; more;) {
    const std::size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    check(!part.empty(), "{} has an empty part; write one value, or several with '{}' between them", what,
          separator);
    parts.push_back(part);
    more = end != std::string_view::npos;
    if (more) text.remove_prefix(end + 1);
  }
  return parts;
}

}  // namespace headroom
