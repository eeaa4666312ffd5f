// The rows that take part in a dilated pattern, as a list: segment after segment, document after document. In
// it every query sees one interval of the keys' list, and both ends rise with the query. Pure functions, the
// same on host and device; whatever document_starts hold, no row leaves its chunk.
#pragma once

#include <cstdint>

#include "headroom/attention/mask.h"

namespace headroom {

// The rows of one document that take part, by number from the document's first.
struct DilatedDocument {
  std::int64_t begin = 0;  // position
  std::int64_t end = 0;
  std::int64_t segment = 1;
  std::int64_t rate = 1;
  std::int64_t offset = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  static std::int64_t count(const MaskView& mask) {
    return mask.document_starts == nullptr ? 1 : mask.documents + 1;
  }
  // Document n of the mask; the last is what follows the listed ones.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  static DilatedDocument of(const MaskView& mask, std::int64_t n) {
    DilatedDocument document{0, Mask::kUnlimited, mask.dilation.segment, mask.dilation.rate,
                             mask.dilation_offset};
    if (mask.document_starts == nullptr) return document;
    document.begin = higher(mask.document_starts[n], 0);
    if (n < mask.documents) document.end = higher(mask.document_starts[n + 1], document.begin);
    return document;
  }

  // Those of a chunk of `rows` rows from position `start` on.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange members(std::int64_t start, std::int64_t rows) const {
    return {members_before(start), members_before(start + rows)};
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t position(std::int64_t member) const {
    const std::int64_t whole = members_of(segment);
    return begin + member / whole * segment + offset + member % whole * rate;
  }
  // What a member that is a query sees: numbers of members.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange seen(const MaskView& mask, std::int64_t member) const {
    const KeyRange keys = mask.interval(position(member) - mask.query_start);
    return {members_before(mask.key_start + keys.begin), members_before(mask.key_start + keys.end)};
  }

 private:
  [[nodiscard]] HEADROOM_HOST_DEVICE
  static std::int64_t higher(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t members_of(std::int64_t rows) const {
    return rows > offset ? (rows - offset + rate - 1) / rate : 0;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t members_before(std::int64_t position) const {
    const std::int64_t rows = higher((position < end ? position : end) - begin, 0);
    return rows / segment * members_of(segment) + members_of(rows % segment);
  }
};

}  // namespace headroom
