#include "train/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headroom {
namespace {

using namespace std::literals;

// What a file is by its first bytes.
struct Kind {
  std::string_view magic;
  std::string_view what;
  std::string_view advice;
};

constexpr std::string_view kUnpack = "unpack it first";
constexpr std::string_view kConvert = "convert it to UTF-8 first, for instance with iconv";
constexpr std::string_view kExtract = "extract its text first";
constexpr std::string_view kTokenize = "write what it makes of a text into a .bin and give that file";

constexpr std::array kKinds = {
    Kind{"\x93NUMPY"sv, "a NumPy array",
         "save its tokens with array.tofile(\"tokens.bin\") and give that file"},
    Kind{"\x1F\x8B\x08"sv, "compressed with gzip", kUnpack},
    Kind{"BZh91AY&SY"sv, "compressed with bzip2", kUnpack},
    Kind{"\xFD\x37zXZ\0"sv, "compressed with xz", kUnpack},
    Kind{"\x28\xB5\x2F\xFD"sv, "compressed with zstd", kUnpack},
    Kind{"PK\x03\x04"sv, "a zip archive", kUnpack},
    Kind{"%PDF-"sv, "a PDF", kExtract},
    Kind{"PAR1\x15"sv, "a Parquet table", kExtract},
    Kind{"ARROW1\0\0"sv, "an Arrow table", kExtract},
    Kind{"\x89PNG\r\n\x1A\n"sv, "an image", {}},
    Kind{"\xFF\xD8\xFF"sv, "an image", {}},
    Kind{"GIF89a"sv, "an image", {}},
    Kind{"\x7F\x45LF"sv, "a program", {}},
    Kind{"\xFF\xFE"sv, "UTF-16", kConvert},
    Kind{"\xFE\xFF"sv, "UTF-16", kConvert},
};

std::string_view characters(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string sentence(std::string_view what, std::string_view instead_of, std::string_view advice) {
  return fmt::format("is {}, not {}{}{}", what, instead_of, advice.empty() ? "" : "; ", advice);
}

// Eight bytes that say how long the JSON after them is.
bool is_safetensors(std::string_view head) {
  return head.size() > 9 && head.substr(4, 4) == "\0\0\0\0"sv && head.substr(8, 2) == "{\"";
}

// The order in which the tokenizers library writes its members.
bool is_tokenizer(std::string_view head) {
  const std::string_view start = head.substr(0, 1024);
  return start.starts_with('{') && start.find("\"version\"") != std::string_view::npos &&
         start.find("\"added_tokens\"") != std::string_view::npos;
}

bool is_control(unsigned char byte) {
  return (byte < 0x20 && (byte < '\t' || byte > '\r')) || byte == 0x7F;
}

// Bytes of the character that begins here, which may end after the text; 0 where it is none. Table 3-7 of the
// Unicode standard: no surrogates, nothing past U+10FFFF, nothing longer than it has to be.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;  // the second byte's range
  unsigned char high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < std::min(length, text.size()); ++i) {
    if (byte(i) < low || byte(i) > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

// Bytes of a character that begins before the text.
std::size_t continuation_bytes(std::string_view text) {
  std::size_t count = 0;
  while (count < std::min<std::size_t>(3, text.size()) &&
         (static_cast<unsigned char>(text[count]) & 0xC0) == 0x80)
    ++count;
  return count;
}

}  // namespace

std::optional<std::string> why_not_text(const TextPiece& piece) {
  const std::string_view text = characters(piece.bytes);
  if (piece.begin == 0) {
    for (const Kind& kind : kKinds) {
      if (text.starts_with(kind.magic)) return sentence(kind.what, "text", kind.advice);
    }
    if (is_safetensors(text)) return sentence("a safetensors file", "text", {});
    if (is_tokenizer(text)) return sentence("a tokenizer's JSON", "text", kTokenize);
  }
  for (std::size_t i = piece.begin == 0 ? 0 : continuation_bytes(text); i < text.size();) {
    const auto at = piece.begin + static_cast<std::int64_t>(i);
    if (is_control(static_cast<unsigned char>(text[i])))
      return fmt::format("has the byte 0x{:02x} at {}, which is not text",
                         static_cast<unsigned char>(text[i]), at);
    const std::size_t length = character_bytes(text.substr(i));
    if (length == 0 || (i + length > text.size() && piece.ends_file))
      return fmt::format("is not UTF-8 at byte {}, so it is not text", at);
    i += length;
  }
  return std::nullopt;
}

std::optional<std::string> why_not_tokens(std::span<const std::byte> head) {
  constexpr std::size_t kBeyondChance = 4;  // bytes: one file in 2^32 begins so
  for (const Kind& kind : kKinds) {
    if (kind.magic.size() >= kBeyondChance && characters(head).starts_with(kind.magic))
      return sentence(kind.what, "tokens", kind.advice);
  }
  return std::nullopt;
}

std::optional<std::string> why_not_text_by_name(std::string_view file_name) {
  constexpr std::array kNames = {"tokenizer.json"sv, "tokenizer_config.json"sv, "vocab.json"sv,
                                 "added_tokens.json"sv, "special_tokens_map.json"sv};
  if (std::ranges::find(kNames, file_name) == kNames.end()) return std::nullopt;
  return sentence("a tokenizer's JSON", "text", kTokenize);
}

}  // namespace headroom
