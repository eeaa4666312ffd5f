// A short name for the contents of a source: other contents get another, but for one chance in 2^32 and for
// what is changed in a large source between the pieces that are looked at.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "headroom/core/bytes.h"
#include "headroom/core/checksum.h"
#include "train/pieces_of_files.h"

namespace headroom {

// All of a source up to 256 MiB; of a larger one 1,024 pieces. Large pieces, because every one may be a seek.
inline constexpr PieceSizes kFingerprintPieces{.count = 1'024, .bytes = 256 * kKiB};

class Fingerprint {
 public:
  // What the source is: kind, sizes, names.
  Fingerprint& shape(std::int64_t number) {
    shape_ = crc32c(std::as_bytes(std::span(&number, 1)), shape_);
    return *this;
  }
  Fingerprint& shape(std::string_view text) {
    shape_ = crc32c(std::as_bytes(std::span(text)), shape_);
    return shape(static_cast<std::int64_t>(text.size()));
  }
  void contents(std::span<const std::byte> bytes) { contents_ = crc32c(bytes, contents_); }

  [[nodiscard]] std::string text() const { return fmt::format("{:08x}{:08x}", shape_, contents_); }

 private:
  std::uint32_t shape_ = 0;
  std::uint32_t contents_ = 0;
};

}  // namespace headroom
