#include "headroom/core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace headroom {
namespace {

constexpr std::size_t kLongestQuoted = 60;

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// How many bytes the character at the front takes; 0 where it is no UTF-8, or a control character.
std::size_t printable_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  std::uint32_t code = first & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return 0;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool character = code >= kLeast[size] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  // U+0080 to U+009F are control characters too; U+2028 and U+2029 end a line.
  return character && code >= 0xA0 && code != 0x2028 && code != 0x2029 ? size : 0;
}

// The longest beginning of at most `bytes` that ends between characters.
std::string_view beginning(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && continues(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text);
    if (bytes > 0) {
      result += text.substr(0, bytes);
    } else if (const std::size_t known = std::string_view("\n\t\r").find(text.front());
               known != std::string_view::npos) {
      result += '\\';
      result += "ntr"[known];
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string quote(std::string_view text) {
  const std::string_view shown = beginning(text, kLongestQuoted);
  return fmt::format("'{}{}'", printable(shown), shown.size() < text.size() ? "..." : "");
}

std::string shortened(std::string_view text, std::size_t longest) {
  constexpr std::string_view kGap = " ... ";
  if (text.size() <= longest) return std::string(text);
  const std::size_t kept = longest - std::min(kGap.size(), longest);
  std::string_view end = text.substr(text.size() - kept / 2);
  while (!end.empty() && continues(end.front())) end.remove_prefix(1);
  return fmt::format("{}{}{}", beginning(text, kept - kept / 2), kGap, end);
}

}  // namespace headroom
