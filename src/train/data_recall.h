// A task that only attention over the whole context can do. Every key is given a value among the first
// tokens; then there is filler; the second half asks for keys at random. Answers are labels and never stand
// in the input, so whoever does not see the beginning can but guess: ln(values).
//
//   tokens   0 .. K - 1: asks for key k;  K .. K + V - 1: value v, labels only;  K + V: filler
//            K + V + 1 + k * V + v: key k has value v
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/train/data.h"

namespace headroom {

struct Recall {
  // Options as in "keys=8,values=8"; what is not said is 4.
  Recall(std::string_view spec, std::string_view text, const DataOptions& options);

  std::int64_t keys = 4;
  std::int64_t values = 4;
  std::int64_t context;
  std::uint64_t seed;  // this source's own

  static constexpr bool kDocuments = false;
  [[nodiscard]] std::int64_t vocab_needed() const { return assignment_token(keys - 1, values - 1) + 1; }
  [[nodiscard]] std::optional<std::int64_t> samples_per_epoch() const { return std::nullopt; }
  [[nodiscard]] std::optional<double> floor() const;
  [[nodiscard]] std::string fingerprint() const;
  [[nodiscard]] std::string describe() const;
  void fill(std::int64_t index, const Samples& sample) const;

  [[nodiscard]] std::int64_t value_token(std::int64_t value) const { return keys + value; }
  [[nodiscard]] std::int64_t filler_token() const { return keys + values; }
  [[nodiscard]] std::int64_t assignment_token(std::int64_t key, std::int64_t value) const {
    return keys + values + 1 + key * values + value;
  }
};

}  // namespace headroom
