// From a spec to its source; checks what all sources share.
#include "headroom/train/data.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>

#include "headroom/core/bytes.h"
#include "train/data_documents.h"
#include "train/data_flat.h"
#include "train/data_recall.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

using Source = std::variant<FlatFile, Documents, Recall>;

constexpr std::string_view kAccepted =
    "give a text file, a file.bin of 16-bit tokens (file.bin:uint32 for 32), a directory of documents, or "
    "recall:keys=K,values=V";

struct FileSpec {
  std::string path;
  TokenType type = TokenType::byte;
  bool type_given = false;
};

// "file.bin", "file.bin:uint32", or anything else.
FileSpec parse_file(std::string_view spec) {
  constexpr std::string_view kMark = ".bin:";
  const std::size_t mark = spec.rfind(kMark);
  if (mark == std::string_view::npos || spec.find('/', mark) != std::string_view::npos) {
    return {.path = std::string(spec), .type = spec.ends_with(".bin") ? TokenType::uint16 : TokenType::byte};
  }
  const std::string_view type = spec.substr(mark + kMark.size());
  check(type == "uint16" || type == "uint32", "token type '{}' of data '{}' is unknown; use uint16 or uint32",
        type, spec);
  return {.path = std::string(spec.substr(0, mark + kMark.size() - 1)),
          .type = type == "uint16" ? TokenType::uint16 : TokenType::uint32,
          .type_given = true};
}

void check_without_bytes(std::string_view spec, const DataOptions& options) {
  check(!options.bytes, "--bytes takes bytes for tokens, and data '{}' has tokens of its own; leave it out",
        spec);
}

// The bytes of a text are no tokens of a model that has more words than bytes have values.
void check_byte_vocabulary(std::string_view spec, const DataOptions& options) {
  check(options.bytes || options.vocab <= 256,
        "data '{}' is text, whose bytes are not tokens of a model with {} words; give the tokens as a .bin, "
        "or --bytes to train on bytes as tokens 0 to 255",
        spec, format_count(options.vocab));
}

// "recall" or "recall:keys=K,values=V".
Recall open_recall(std::string_view spec, const DataOptions& options) {
  check_without_bytes(spec, options);
  const std::size_t colon = spec.find(':');
  if (colon == std::string_view::npos) return {spec, {}, options};
  const std::string_view text = spec.substr(colon + 1);
  check(!text.empty(), "data '{}' has no options after the colon; write recall or recall:keys=K,values=V",
        spec);
  return {spec, text, options};
}

Source open_source(std::string_view spec, const DataOptions& options) {
  if (spec == "recall" || spec.starts_with("recall:")) return open_recall(spec, options);
  FileSpec file = parse_file(spec);
  std::error_code error;
  const fs::file_status status = fs::status(file.path, error);
  check(status.type() != fs::file_type::not_found, "data '{}' names nothing that exists; {}", spec,
        kAccepted);
  if (::access(file.path.c_str(), R_OK) != 0) {
    fail(ErrorKind::input, "data '{}' cannot be read: {}; {}", spec, std::strerror(errno), kAccepted);
  }
  if (fs::is_directory(status)) {
    check(!file.type_given,
          "'{}' is a directory, whose documents are bytes; leave out what follows the colon", file.path);
    Documents documents(std::move(file.path), options);
    check_byte_vocabulary(spec, options);
    return documents;
  }
  check(fs::is_regular_file(status), "data '{}' is neither a file nor a directory; {}", spec, kAccepted);
  if (file.type != TokenType::byte) check_without_bytes(spec, options);
  FlatFile flat(std::move(file.path), file.type, options);
  if (file.type == TokenType::byte) check_byte_vocabulary(spec, options);
  return flat;
}

void check_room(std::span<const std::int32_t> room, std::string_view name, std::int64_t needed) {
  check(std::ssize(room) == needed, "there is room for {} {}; a sample has {}", room.size(), name, needed);
}

}  // namespace

struct Data::State {
  DataOptions options;
  Source source;
};

Data Data::open(std::string_view spec, const DataOptions& options) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  check(options.context >= 1 && options.context <= kMost, "a context of {} is impossible; use 1 to {}",
        options.context, kMost);
  check(options.vocab >= 0 && options.vocab <= kMost, "a vocabulary of {} is impossible; use 1 to {}",
        options.vocab, kMost);
  Data data(std::make_unique<const State>(State{.options = options, .source = open_source(spec, options)}));
  check(options.vocab == 0 || options.vocab >= data.vocab_needed(),
        "a vocabulary of {} is too small for data '{}'; the least is {}", options.vocab, spec,
        data.vocab_needed());
  return data;
}

Data::Data(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Data::Data(Data&&) noexcept = default;
Data& Data::operator=(Data&&) noexcept = default;
Data::~Data() = default;

std::int64_t Data::vocab_needed() const {
  return std::visit([](const auto& source) { return source.vocab_needed(); }, state_->source);
}

bool Data::documents() const {
  return std::visit([](const auto& source) { return source.kDocuments; }, state_->source);
}

std::optional<std::int64_t> Data::samples_per_epoch() const {
  return std::visit([](const auto& source) { return source.samples_per_epoch(); }, state_->source);
}

std::optional<double> Data::floor() const {
  return std::visit([](const auto& source) { return source.floor(); }, state_->source);
}

std::string Data::fingerprint() const {
  return std::visit([](const auto& source) { return source.fingerprint(); }, state_->source);
}

std::string Data::describe() const {
  return std::visit([](const auto& source) { return source.describe(); }, state_->source);
}

void Data::fill(std::int64_t index, const Samples& sample) const {
  const DataOptions& options = state_->options;
  check(index >= 0, "sample {} does not exist; the first is 0", index);
  check_room(sample.tokens, "tokens", options.context);
  check_room(sample.labels, "labels", options.context);
  check_room(sample.positions, "positions", options.context);
  if (documents()) {
    check_room(sample.document_starts, "document starts", options.max_documents + 1);
  } else {
    check(sample.document_starts.empty(),
          "there is room for {} document starts; this source has no boundaries, so it has to be empty",
          sample.document_starts.size());
  }
  std::visit([&](const auto& source) { source.fill(index, sample); }, state_->source);
}

}  // namespace headroom
