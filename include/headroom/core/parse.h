// Numbers, spans of time and lists as people write them: one strict grammar for every option, mask, data spec
// and file of ours. `what` opens the message of an error and names the value: an option, or what the number
// counts.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

// A whole number in decimal digits: no sign, no leading zero, no spaces, no point, no exponent.
inline constexpr std::int64_t kMostWhole = std::numeric_limits<std::int64_t>::max();
[[nodiscard]] std::int64_t parse_whole(std::string_view what, std::string_view text, std::int64_t least,
                                       std::int64_t most = kMostWhole);

// The same from 0 to 2^64 - 1.
[[nodiscard]] std::uint64_t parse_seed(std::string_view what, std::string_view text);

// A finite decimal number that is not negative: 3, 0.25, 3e-4. Digits on both sides of a point, no sign
// before the number, no leading zero, no spaces.
struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::max();
  bool above = false;        // `least` itself is refused
  bool or_infinity = false;  // `inf` is accepted too
};
[[nodiscard]] double parse_number(std::string_view what, std::string_view text, const NumberRange& range);

// A span of time in seconds, with one of the units ns, us, ms, s, min or h: 5us, 0.5s, 10min. The number is
// that of parse_number() without an exponent.
struct SecondsRange {
  double least = 0;
  double most = 366 * 24 * 3600.0;
  bool above = false;  // `least` itself is refused
};
[[nodiscard]] double parse_seconds(std::string_view what, std::string_view text, const SecondsRange& range);

// The parts between separators, at least one and none of them empty; they point into `text`.
[[nodiscard]] std::vector<std::string_view> parse_list(std::string_view what, std::string_view text,
                                                       char separator = ',');

}  // namespace headroom
