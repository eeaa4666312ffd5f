#include "headroom/model/shards.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

// Where weights are gathered unit by unit, a unit is what is needed together: the embedding, each layer, and
// what follows the layers; of that, the output weight is apart where it is not gathered. Otherwise there is
// one.
std::vector<std::int64_t> begins_of_units(const ParameterTable& table, Sharding sharding,
                                          LossRanks loss_ranks) {
  std::vector<std::int64_t> begins = {0};
  if (sharding == Sharding::full) {
    for (std::int64_t layer = 0; layer < table.layers(); ++layer) {
      begins.push_back(table.find(layer, Weight::norm1)->offset);
    }
    begins.push_back(table.final_norm().offset);
    if (loss_ranks == LossRanks::vocabulary && &table.output() != &table.embedding())
      begins.push_back(table.output().offset);
  }
  begins.push_back(table.elements());
  return begins;
}

// Where the slices of a unit of so many elements begin, from where it begins, and its end.
std::vector<std::int64_t> equal_slices(std::int64_t elements, int ranks) {
  const std::int64_t blocks = elements / ParameterTable::kAlignment;
  std::vector<std::int64_t> begins;
  for (std::int64_t rank = 0; rank <= ranks; ++rank) {
    begins.push_back(blocks * rank / ranks * ParameterTable::kAlignment);
  }
  return begins;
}

// The same where a rank's slice begins with the first of its words.
std::vector<std::int64_t> slices_of_words(const ParameterTable& table, std::int64_t elements, int ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank < ranks; ++rank) {
    begins.push_back(vocabulary_slice(table, rank, ranks).first * table.output().shape[1]);
  }
  begins.push_back(elements);
  return begins;
}

std::vector<std::int64_t> differences(const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 1; i < values.size(); ++i) found.push_back(values[i] - values[i - 1]);
  return found;
}

}  // namespace

VocabularySlice vocabulary_slice(const ParameterTable& table, int rank, int ranks) {
  const std::int64_t vocab = table.output().shape[0];
  const std::int64_t hidden = table.output().shape[1];
  const std::int64_t step =
      ParameterTable::kAlignment / std::gcd(hidden, std::int64_t{ParameterTable::kAlignment});
  const std::int64_t steps = divide_up(vocab, step);
  const auto begin = [&](std::int64_t of) { return std::min(vocab, steps * of / ranks * step); };
  return {.first = begin(rank), .words = begin(rank + 1) - begin(rank)};
}

Shards::Shards(const ParameterTable& table, Sharding sharding, int ranks, LossRanks loss_ranks)
    : unit_begins_(begins_of_units(table, sharding, loss_ranks)) {
  const std::int64_t elements = table.elements();
  if (sharding == Sharding::none || ranks == 1) {
    divisions_ = {{.begins = {0, elements}, .counts = {elements}}};
    division_of_ = {0};
    return;
  }
  const std::int64_t most = elements / ParameterTable::kAlignment;
  check(ranks <= most, "a model of {} parameters cannot be divided over {} ranks; {} are the most",
        format_count(table.parameters()), ranks, most);
  struct Cut {
    std::int64_t elements;
    bool of_words;

    bool operator==(const Cut&) const = default;
  };
  std::vector<Cut> cuts;  // [divisions]
  for (std::size_t unit = 0; unit + 1 < unit_begins_.size(); ++unit) {
    const bool of_words = sharding == Sharding::full && loss_ranks == LossRanks::vocabulary &&
                          unit_begins_[unit] == table.output().offset;
    const Cut cut{unit_begins_[unit + 1] - unit_begins_[unit], of_words};
    const auto known = std::ranges::find(cuts, cut);
    division_of_.push_back(static_cast<std::size_t>(known - cuts.begin()));
    if (known != cuts.end()) continue;
    cuts.push_back(cut);
    std::vector<std::int64_t> begins =
        of_words ? slices_of_words(table, cut.elements, ranks) : equal_slices(cut.elements, ranks);
    std::vector<std::int64_t> counts = differences(begins);
    divisions_.push_back({std::move(begins), std::move(counts)});
  }
}

ShardSlice Shards::slice(int rank, std::size_t unit) const {
  ShardSlice slice{.flat_begin = unit_begins_[unit] + division(unit).begins[place(rank)],
                   .own_begin = 0,
                   .elements = division(unit).counts[place(rank)]};
  for (std::size_t before = 0; before < unit; ++before) {
    slice.own_begin += division(before).counts[place(rank)];
  }
  return slice;
}

std::vector<ShardSlice> Shards::slices(int rank) const {
  std::vector<ShardSlice> slices;
  slices.reserve(division_of_.size());
  for (std::size_t unit = 0; unit < division_of_.size(); ++unit) slices.push_back(slice(rank, unit));
  return slices;
}

std::int64_t Shards::elements(int rank) const {
  const ShardSlice last = slice(rank, division_of_.size() - 1);
  return last.own_begin + last.elements;
}

}  // namespace headroom
