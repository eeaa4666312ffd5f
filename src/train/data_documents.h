// A directory whose files are documents. An epoch lays them one after another in an order of its own and cuts
// that into sequences: sample s of it is bytes [s * context, (s + 1) * context). A document goes on in the
// next sequence as a new piece, with positions that go on. What follows the last piece (at the end of the
// epoch, and where max_documents pieces are full: what is left of them is not seen in this epoch) is padding.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/train/data.h"
#include "train/permutation.h"

namespace headroom {

struct Documents {
  Documents(std::string path, const DataOptions& options);

  struct File {
    std::string name;
    std::int64_t bytes = 0;
  };
  // Where every document of an epoch begins. One epoch at a time: samples come in order but for a few around
  // the end of an epoch.
  struct Starts {
    std::mutex mutex;
    std::int64_t epoch = -1;
    std::vector<std::int64_t> begin;  // [files], in the epoch's order
  };
  struct Place {
    std::int64_t document = 0;  // in the epoch's order
    std::int64_t offset = 0;    // bytes of it that earlier sequences hold
  };

  std::string path;
  Descriptor directory;
  std::int64_t context;
  std::int64_t max_documents;
  std::uint64_t seed;       // this source's own
  bool text;                // documents have to be text
  std::vector<File> files;  // sorted by name, none empty
  std::int64_t bytes = 0;   // of all of them
  std::int64_t sequences = 0;
  std::unique_ptr<Starts> starts;

  static constexpr bool kDocuments = true;
  [[nodiscard]] std::int64_t vocab_needed() const { return 256; }
  [[nodiscard]] std::optional<std::int64_t> samples_per_epoch() const { return sequences; }
  [[nodiscard]] std::optional<double> floor() const { return std::nullopt; }
  [[nodiscard]] std::string fingerprint() const;
  [[nodiscard]] std::string describe() const;
  void fill(std::int64_t index, const Samples& sample) const;

  // An open document, and bytes of it from an offset, at least one; throws where it has become shorter.
  [[nodiscard]] Descriptor open(const File& document, ErrorKind kind = ErrorKind::runtime) const;
  [[nodiscard]] std::int64_t read(const File& document, const Descriptor& file, std::span<std::byte> into,
                                  std::int64_t offset) const;

 private:
  void list_files();
  void check_readable(const File& document) const;
  [[nodiscard]] Permutation order(std::int64_t epoch) const;
  [[nodiscard]] Place find(std::int64_t epoch, std::int64_t byte) const;
};

}  // namespace headroom
