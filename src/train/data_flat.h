// One file of tokens without boundaries: bytes, or numbers of 16 or 32 bits. Samples are windows of context +
// 1 tokens, side by side (the last token of one is the first of the next); every epoch has an order of its
// own, and begins at a place of its own as far as the tokens that fill no window leave room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "headroom/core/files.h"
#include "headroom/train/data.h"

namespace headroom {

enum class TokenType : std::uint8_t { byte, uint16, uint32 };

struct FlatFile {
  FlatFile(std::string path, TokenType token_type, const DataOptions& options);

  std::string path;
  TokenType type;
  MappedFile file;
  std::int64_t context;
  std::int64_t vocab;        // every token has to be below
  bool text;                 // bytes that are text
  std::uint64_t seed;        // this source's own
  std::int64_t tokens = 0;   // in the file
  std::int64_t windows = 0;  // in an epoch

  static constexpr bool kDocuments = false;
  [[nodiscard]] std::int64_t vocab_needed() const { return vocab; }
  [[nodiscard]] std::optional<std::int64_t> samples_per_epoch() const { return windows; }
  [[nodiscard]] std::optional<double> floor() const { return std::nullopt; }
  [[nodiscard]] std::string fingerprint() const;
  [[nodiscard]] std::string describe() const;
  void fill(std::int64_t index, const Samples& sample) const;

  // Where the window of a sample begins, in tokens.
  [[nodiscard]] std::int64_t window_begin(std::int64_t index) const;

 private:
  void check_contents() const;
};

}  // namespace headroom
