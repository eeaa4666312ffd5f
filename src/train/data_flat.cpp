#include "train/data_flat.h"

#include <filesystem>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "train/fingerprint.h"
#include "train/permutation.h"
#include "train/source_seed.h"
#include "train/text.h"

namespace headroom {
namespace {

// All of a text up to 1 MiB is looked at, and 16 pieces of a longer one.
constexpr PieceSizes kTextPieces{.count = 16, .bytes = 64 * kKiB};

constexpr std::uint64_t kBeginDraw = std::uint64_t{1} << 40;  // past what the permutation draws

std::int64_t token_bytes(TokenType type) {
  return type == TokenType::byte ? 1 : type == TokenType::uint16 ? 2 : 4;
}

// A type of few values can stand in for a vocabulary that is not known.
std::int64_t vocab_of(const std::string& path, TokenType type, std::int64_t given) {
  if (type == TokenType::byte) return 256;
  if (given > 0) return given;
  check(type == TokenType::uint16,
        "'{}' holds tokens of 32 bits and does not say how many there are; give the vocabulary", path);
  return 65'536;
}

// body(begin, bytes) for pieces of a mapped file, which leave this process's memory after it.
template <class Body>
void for_each_mapped_piece(const MappedFile& file, const PieceSizes& sizes, const Body& body) {
  for_each_piece(std::ssize(file.bytes()), sizes, [&](std::int64_t begin, std::int64_t bytes) {
    const auto piece = file.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
    body(begin, piece);
    file.release(piece);
  });
}

template <class T>
void fill_window(const FlatFile& source, std::int64_t begin, const Samples& sample) {
  const auto* window = reinterpret_cast<const T*>(source.file.bytes().data()) + begin;  // [context + 1]
  auto* tokens = sample.tokens.data();
  auto* labels = sample.labels.data();
  auto* positions = sample.positions.data();
  for (std::int64_t i = 0; i <= source.context; ++i) {
    const std::int64_t token = window[i];
    check(token < source.vocab, "token {} at index {} of '{}' is not below the vocabulary of {}", token,
          begin + i, source.path, source.vocab);
    if (i > 0) labels[i - 1] = static_cast<std::int32_t>(token);
    if (i == source.context) break;
    tokens[i] = static_cast<std::int32_t>(token);
    positions[i] = static_cast<std::int32_t>(i);
  }
}

}  // namespace

FlatFile::FlatFile(std::string file_path, TokenType token_type, const DataOptions& options)
    : path(std::move(file_path)),
      type(token_type),
      file(path),
      context(options.context),
      vocab(vocab_of(path, type, options.vocab)),
      text(type == TokenType::byte && !options.bytes),
      seed(source_seed(options.seed, SourceSeed::flat)) {
  const std::int64_t size = token_bytes(type);
  const auto bytes = static_cast<std::int64_t>(file.bytes().size());
  check(bytes > 0, "'{}' is empty; a sequence of {} needs {} tokens", path, context, context + 1);
  check_contents();
  check(bytes % size == 0, "'{}' has {} bytes, no multiple of the {} that a token takes", path, bytes, size);
  tokens = bytes / size;
  check(tokens > context, "'{}' has {} tokens, a context of {} needs at least {}", path, tokens, context,
        context + 1);
  windows = (tokens - 1) / context;
}

void FlatFile::check_contents() const {
  constexpr std::string_view kLifted = "--bytes trains on the bytes of any file";
  if (type != TokenType::byte) {
    const std::optional<std::string> reason = why_not_tokens(file.bytes());
    check(!reason, "'{}' {}", path, reason.value_or(""));
  }
  if (!text) return;
  const std::optional<std::string> by_name =
      why_not_text_by_name(std::filesystem::path(path).filename().string());
  check(!by_name, "'{}' {}; {}", path, by_name.value_or(""), kLifted);
  for_each_mapped_piece(file, kTextPieces, [&](std::int64_t begin, std::span<const std::byte> piece) {
    const bool ends_file = begin + std::ssize(piece) == std::ssize(file.bytes());
    const auto reason = why_not_text({.bytes = piece, .begin = begin, .ends_file = ends_file});
    check(!reason, "'{}' {}; {}", path, reason.value_or(""), kLifted);
  });
}

std::string FlatFile::fingerprint() const {
  Fingerprint fingerprint;
  fingerprint.shape("flat").shape(token_bytes(type)).shape(tokens);
  for_each_mapped_piece(file, kFingerprintPieces,
                        [&](std::int64_t, std::span<const std::byte> piece) { fingerprint.contents(piece); });
  return fingerprint.text();
}

std::string FlatFile::describe() const {
  if (type == TokenType::byte)
    return fmt::format("{} {}, {} bytes as tokens", text ? "text" : "file", path, format_count(tokens));
  return fmt::format("tokens {}, {} of {} bits", path, format_count(tokens), 8 * token_bytes(type));
}

std::int64_t FlatFile::window_begin(std::int64_t index) const {
  const Random random(seed, static_cast<std::uint64_t>(index / windows));
  const auto room = static_cast<std::uint64_t>((tokens - 1) % context);
  const auto first = static_cast<std::int64_t>(random.below(kBeginDraw, room + 1));
  return first + Permutation(random, windows)(index % windows) * context;
}

void FlatFile::fill(std::int64_t index, const Samples& sample) const {
  const std::int64_t begin = window_begin(index);
  switch (type) {
    case TokenType::byte: return fill_window<std::uint8_t>(*this, begin, sample);
    case TokenType::uint16: return fill_window<std::uint16_t>(*this, begin, sample);
    case TokenType::uint32: return fill_window<std::uint32_t>(*this, begin, sample);
  }
}

}  // namespace headroom
