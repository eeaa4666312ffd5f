#include "headroom/core/bytes.h"

#include <array>
#include <limits>

#include "headroom/core/checked.h"
#include "headroom/core/error.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"kB", 1'000},
    Unit{"KB", 1'000},
    Unit{"MB", 1'000'000},
    Unit{"GB", 1'000'000'000},
    Unit{"TB", 1'000'000'000'000},
    Unit{"PB", 1'000'000'000'000'000},
    Unit{"KiB", kKiB},
    Unit{"MiB", kMiB},
    Unit{"GiB", kGiB},
    Unit{"TiB", kGiB << 10},
    Unit{"PiB", kGiB << 20},
};

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::int64_t parse_bytes(std::string_view text, std::string_view what) {
  // value = digits / scale; 18 digits keep digits x unit inside 128 bits.
  constexpr int kMaxDigits = 18;
  constexpr std::string_view kAccepted = "a number with B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB or PiB";
  UInt128 digits = 0;
  std::int64_t scale = 1;
  int digit_count = 0;
  std::size_t i = 0;
  bool fraction = false;
  for (; i < text.size(); ++i) {
    if (text[i] == '.' && !fraction) {
      fraction = true;
      continue;
    }
    if (!is_digit(text[i])) break;
    check(++digit_count <= kMaxDigits, "{} {} has more than {} digits", what, quote(text), kMaxDigits);
    if (fraction) scale *= 10;
    digits = digits * 10 + static_cast<unsigned>(text[i] - '0');
  }
  const std::string_view number = text.substr(0, i);
  const bool leading_zero = number.size() > 1 && number[0] == '0' && number[1] != '.';
  check(digit_count > 0 && is_digit(number.front()) && is_digit(number.back()) && !leading_zero,
        "{} {} is not understood; write {}, such as 80GiB", what, quote(text), kAccepted);

  std::string_view unit_name = text.substr(i);
  if (unit_name.size() > 1 && unit_name.front() == ' ') unit_name.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name) continue;
    const UInt128 bytes = digits * static_cast<UInt128>(unit.bytes) / static_cast<UInt128>(scale);
    check(bytes <= std::numeric_limits<std::int64_t>::max(), "{} {} does not fit in 64 bits", what,
          quote(text));
    return static_cast<std::int64_t>(bytes);
  }
  fail(ErrorKind::input, "{} {} has the unknown unit {}; write {}, such as 80GiB", what, quote(text),
       quote(unit_name), kAccepted);
}

std::int64_t parse_budget(std::string_view text, std::string_view what) {
  const std::int64_t bytes = parse_bytes(text, what);
  check(bytes > 0, "{} {} is zero bytes; it has to be above zero, such as 80GiB", what, quote(text));
  return bytes;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -kKiB && bytes < kKiB) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / kKiB;
  std::size_t unit = 0;
  while ((value >= 1024 || value <= -1024) && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.2f}", value);
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return fmt::format("{} {}", number, kNames[unit]);
}

std::string format_count(std::int64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string format_ordinal(std::int64_t number) {
  constexpr std::array kEndings = {"th", "st", "nd", "rd"};
  const auto last = static_cast<std::size_t>(number % 10);
  const bool teens = number / 10 % 10 == 1;
  return fmt::format("{}{}", number, kEndings[teens || last >= kEndings.size() ? 0 : last]);
}

}  // namespace headroom
