#include "train/data_documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "train/fingerprint.h"
#include "train/source_seed.h"
#include "train/text.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// Part of one document at its place in a sequence.
struct Piece {
  std::int64_t offset = 0;    // of its first byte in the document
  std::int64_t tokens = 0;    // in this sequence
  std::int64_t position = 0;  // of its first token in the sequence
};

constexpr std::int64_t kTextBytes = kKiB;  // of every document that are looked at

// One file is open at a time, for as long as its piece is read.
void fill_piece(const Documents& source, const Documents::File& document, const Piece& piece,
                const Samples& sample) {
  auto* tokens = sample.tokens.data() + piece.position;
  auto* labels = sample.labels.data() + piece.position;
  auto* positions = sample.positions.data() + piece.position;
  const Descriptor file = source.open(document);
  // The last token of a piece predicts the document's next byte, though that stands in the next sequence.
  const std::int64_t end = std::min(piece.tokens + 1, document.bytes - piece.offset);
  labels[piece.tokens - 1] = kIgnore;
  std::array<std::byte, 16 * kKiB> buffer;
  for (std::int64_t done = 0; done < end;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(end - done, buffer.size()));
    const std::int64_t got =
        source.read(document, file, std::span(buffer).first(wanted), piece.offset + done);
    for (std::int64_t j = 0; j < got; ++j) {
      const std::int64_t i = done + j;
      const auto token = std::to_integer<std::int32_t>(buffer[static_cast<std::size_t>(j)]);
      if (i > 0) labels[i - 1] = token;
      if (i == piece.tokens) break;
      tokens[i] = token;
      positions[i] = static_cast<std::int32_t>(piece.offset + i);
    }
    done += got;
  }
}

// One more document of zeros that predict nothing.
void fill_padding(std::int64_t begin, std::int64_t context, const Samples& sample) {
  for (std::int64_t i = begin; i < context; ++i) {
    sample.tokens.data()[i] = 0;
    sample.labels.data()[i] = kIgnore;
    sample.positions.data()[i] = static_cast<std::int32_t>(i - begin);
  }
}

}  // namespace

Documents::Documents(std::string directory_path, const DataOptions& options)
    : path(std::move(directory_path)),
      directory(open_to_read(path)),
      context(options.context),
      max_documents(options.max_documents),
      seed(source_seed(options.seed, SourceSeed::documents)),
      text(!options.bytes),
      starts(std::make_unique<Starts>()) {
  check(directory.number() >= 0, "directory '{}' cannot be read: {}", path, std::strerror(errno));
  check(max_documents >= 1 && max_documents < std::numeric_limits<std::int32_t>::max(),
        "{} documents in a sequence are impossible; max_documents is 1 or more", max_documents);
  list_files();
  sequences = divide_up(bytes, context);
  starts->begin.resize(files.size());
}

void Documents::list_files() {
  std::error_code error;
  std::int64_t empty = 0;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    struct stat status {};
    const bool there = ::fstatat(directory.number(), name.c_str(), &status, 0) == 0;
    check(there, "document '{}' of '{}' cannot be read: {}", name, path, std::strerror(errno));
    if (S_ISDIR(status.st_mode)) continue;
    check(S_ISREG(status.st_mode), "document '{}' of '{}' is no regular file", name, path);
    const std::int64_t file_bytes = status.st_size;
    check(file_bytes <= std::numeric_limits<std::int32_t>::max(),
          "document '{}' of '{}' has {} bytes; positions count to {}", name, path, format_count(file_bytes),
          format_count(std::numeric_limits<std::int32_t>::max()));
    if (file_bytes == 0) {
      ++empty;
      continue;
    }
    check_readable(files.emplace_back(File{.name = name, .bytes = file_bytes}));
    bytes = checked_add(bytes, file_bytes);
  }
  check(!error, "directory '{}' cannot be read: {}", path, error.message());
  check(!files.empty(), "directory '{}' holds {}; it needs a file with a byte in it", path,
        empty == 0 ? "no files" : "only empty files");
  std::ranges::sort(files, {}, &File::name);
}

Descriptor Documents::open(const File& document, ErrorKind kind) const {
  Descriptor file = open_to_read(document.name, directory);
  if (!file) {
    fail(kind, "document '{}' of '{}' cannot be read: {}", document.name, path, std::strerror(errno));
  }
  return file;
}

std::int64_t Documents::read(const File& document, const Descriptor& file, std::span<std::byte> into,
                             std::int64_t offset) const {
  const std::int64_t got = read_at(file, into, offset);
  if (got < 0) {
    fail(ErrorKind::runtime, "document '{}' of '{}' cannot be read: {}", document.name, path,
         std::strerror(errno));
  }
  if (got == 0) {
    fail(ErrorKind::runtime, "document '{}' of '{}' had {} bytes when it was opened and now ends at {}",
         document.name, path, document.bytes, offset);
  }
  return got;
}

// At listing, so that a person learns of it before anything is planned.
void Documents::check_readable(const File& document) const {
  const Descriptor file = open(document, ErrorKind::input);
  if (!text) return;
  std::array<std::byte, kTextBytes> buffer;
  const std::int64_t got = read(document, file, buffer, 0);
  const auto reason = why_not_text({.bytes = std::span(buffer).first(static_cast<std::size_t>(got)),
                                    .begin = 0,
                                    .ends_file = got == document.bytes});
  check(!reason, "document '{}' of '{}' {}; --bytes trains on the bytes of any file", document.name, path,
        reason.value_or(""));
}

std::string Documents::fingerprint() const {
  Fingerprint fingerprint;
  fingerprint.shape("documents").shape(std::ssize(files));
  for (const File& file : files) fingerprint.shape(file.name).shape(file.bytes);
  // Pieces of all documents, one after another by name; both rise, so a piece begins where the search for the
  // one before it ended, or later.
  std::vector<std::byte> buffer(static_cast<std::size_t>(kFingerprintPieces.bytes));
  std::size_t document = 0;
  std::int64_t document_begin = 0;
  for_each_piece(bytes, kFingerprintPieces, [&](std::int64_t begin, std::int64_t piece_bytes) {
    for (const std::int64_t end = begin + piece_bytes; begin < end;) {
      while (begin >= document_begin + files[document].bytes) document_begin += files[document++].bytes;
      const File& file = files[document];
      const Descriptor opened = open(file);
      for (const std::int64_t stop = std::min(end, document_begin + file.bytes); begin < stop;) {
        const std::int64_t got =
            read(file, opened, std::span(buffer).first(static_cast<std::size_t>(stop - begin)),
                 begin - document_begin);
        fingerprint.contents(std::span(buffer).first(static_cast<std::size_t>(got)));
        begin += got;
      }
    }
  });
  return fingerprint.text();
}

std::string Documents::describe() const {
  return fmt::format("documents {}, {} files, {} bytes as tokens", path,
                     format_count(static_cast<std::int64_t>(files.size())), format_count(bytes));
}

Permutation Documents::order(std::int64_t epoch) const {
  return {Random(seed, static_cast<std::uint64_t>(epoch)), static_cast<std::int64_t>(files.size())};
}

Documents::Place Documents::find(std::int64_t epoch, std::int64_t byte) const {
  const std::lock_guard lock(starts->mutex);
  std::vector<std::int64_t>& begin = starts->begin;
  if (starts->epoch != epoch) {
    const Permutation document = order(epoch);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < begin.size(); ++i) {
      begin[i] = sum;
      sum += files[static_cast<std::size_t>(document(static_cast<std::int64_t>(i)))].bytes;
    }
    starts->epoch = epoch;
  }
  // The last that does not begin after the byte; none is empty, so starts differ.
  const auto after = std::ranges::upper_bound(begin, byte);
  return {.document = after - begin.begin() - 1, .offset = byte - *(after - 1)};
}

void Documents::fill(std::int64_t index, const Samples& sample) const {
  const std::int64_t epoch = index / sequences;
  const Permutation document = order(epoch);
  auto* document_starts = sample.document_starts.data();
  Place place = find(epoch, index % sequences * context);
  std::int64_t pieces = 0;
  std::int64_t filled = 0;
  while (filled < context && pieces < max_documents && place.document < std::ssize(files)) {
    const File& file = files[static_cast<std::size_t>(document(place.document))];
    const Piece piece{.offset = place.offset,
                      .tokens = std::min(file.bytes - place.offset, context - filled),
                      .position = filled};
    fill_piece(*this, file, piece, sample);
    document_starts[pieces++] = static_cast<std::int32_t>(filled);
    filled += piece.tokens;
    place = {.document = place.document + 1, .offset = 0};
  }
  fill_padding(filled, context, sample);
  // The padding, where there is any, is one document more: it begins where the last piece ends.
  document_starts[pieces] = static_cast<std::int32_t>(filled);
  std::fill(document_starts + pieces + 1, document_starts + max_documents + 1,
            static_cast<std::int32_t>(context));
}

}  // namespace headroom
