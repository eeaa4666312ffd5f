// How ranks divide the flat buffers of a parameter table. A buffer is cut into units, and each rank has one
// slice of every unit. A rank's own buffer has its slices one after the other. Slices begin at multiples of
// ParameterTable::kAlignment, so that no block of moments is divided.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "headroom/loss.h"
#include "headroom/model/parameters.h"
#include "headroom/model/strategy.h"

namespace headroom {

// Elements of a flat buffer that a rank has.
struct ShardSlice {
  std::int64_t flat_begin = 0;  // in the whole buffer
  std::int64_t own_begin = 0;   // in the rank's own
  std::int64_t elements = 0;
};

class Shards {
 public:
  // Throws where a rank would have nothing. Where ranks divide weights and the vocabulary, the output weight
  // is a unit of its own, or in a tied model the embedding's, and slices of it are vocabulary_slice's rows.
  Shards(const ParameterTable& table, Sharding sharding, int ranks, LossRanks loss_ranks = LossRanks::tokens);

  // Whether ranks divide anything. Where they do not, every rank has one slice, the whole buffer.
  [[nodiscard]] bool divided() const { return divisions_.front().counts.size() > 1; }
  [[nodiscard]] std::int64_t flat_elements() const { return unit_begins_.back(); }
  // A rank's slice of a unit, and all of its slices, in the order of the buffer.
  [[nodiscard]] ShardSlice slice(int rank, std::size_t unit) const;
  [[nodiscard]] std::vector<ShardSlice> slices(int rank) const;
  // The elements of a rank's own buffer.
  [[nodiscard]] std::int64_t elements(int rank) const;
  // Where the units of the flat buffer begin, and its end.
  [[nodiscard]] std::span<const std::int64_t> unit_begins() const { return unit_begins_; }
  // The elements of every rank's slice of a unit, as Context::reduce_scatter and all_gather take them.
  [[nodiscard]] std::span<const std::int64_t> counts(std::size_t unit) const { return division(unit).counts; }

 private:
  // How a unit is cut.
  struct Division {
    std::vector<std::int64_t> begins;  // [ranks + 1], from where the unit begins
    std::vector<std::int64_t> counts;  // [ranks]
  };
  [[nodiscard]] std::size_t place(int rank) const { return divided() ? static_cast<std::size_t>(rank) : 0; }
  [[nodiscard]] const Division& division(std::size_t unit) const { return divisions_[division_of_[unit]]; }

  std::vector<std::int64_t> unit_begins_;  // [units + 1]
  // Units of one size are cut alike, and most are layers of one size.
  std::vector<Division> divisions_;
  std::vector<std::size_t> division_of_;  // [units]
};

// The words of a rank where ranks divide the vocabulary: whole rows of the output weight that begin at
// multiples of ParameterTable::kAlignment elements. A rank has none where there are too few words.
[[nodiscard]] VocabularySlice vocabulary_slice(const ParameterTable& table, int rank, int ranks);

// Calls body(flat begin, own begin, elements) for what the slices have of flat elements begin to end - 1.
template <class Body>
void for_each_overlap(std::span<const ShardSlice> slices, std::int64_t begin, std::int64_t end,
                      const Body& body) {
  for (const ShardSlice& slice : slices) {
    const std::int64_t first = std::max(begin, slice.flat_begin);
    const std::int64_t last = std::min(end, slice.flat_begin + slice.elements);
    if (first < last) body(first, slice.own_begin + first - slice.flat_begin, last - first);
  }
}

}  // namespace headroom
