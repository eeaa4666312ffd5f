// What is text: UTF-8 without control characters other than white space. A file is judged by pieces of it, so
// that a large one costs little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headroom {

struct TextPiece {
  std::span<const std::byte> bytes;
  std::int64_t begin = 0;  // in its file
  bool ends_file = false;  // no byte follows it
};

// What a piece of a file is instead of text, and what to do about it: "is a PDF, not text; extract its text
// first". Nothing where it is text. A character that begins before the piece or ends after it is none of its
// faults.
[[nodiscard]] std::optional<std::string> why_not_text(const TextPiece& piece);

// The same for a file of tokens, by its first bytes: only what cannot be tokens by chance.
[[nodiscard]] std::optional<std::string> why_not_tokens(std::span<const std::byte> head);

// The same by a file's name: those that every tokenizer's folder has hold JSON, which would pass for text.
[[nodiscard]] std::optional<std::string> why_not_text_by_name(std::string_view file_name);

}  // namespace headroom
