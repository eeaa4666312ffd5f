// Byte sizes as people write them: 80GiB, 512MiB, 37GB, 1.5GiB, 4096.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headroom {

inline constexpr std::int64_t kKiB = std::int64_t{1} << 10;
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Exact in integers: a fraction of a byte is dropped, 2^63 bytes and more are an error. The number is written
// as in core/parse.h, without an exponent; one space may stand before the unit. `what` opens the message of
// an error.
[[nodiscard]] std::int64_t parse_bytes(std::string_view text, std::string_view what = "size");

// A budget is a size above zero.
[[nodiscard]] std::int64_t parse_budget(std::string_view text, std::string_view what = "budget");

// In binary units with up to two decimals, "37.09 GiB"; whole numbers of bytes below 1 KiB.
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

// All digits with separators, "39,823,409,152": where a reader compares byte for byte.
[[nodiscard]] std::string format_count(std::int64_t count);

// "2nd", "11th", "23rd"; of a number from 0 up.
[[nodiscard]] std::string format_ordinal(std::int64_t number);

}  // namespace headroom
