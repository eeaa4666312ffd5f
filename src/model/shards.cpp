#include "headroom/model/shards.h"

#include <numeric>

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

// Where rank r's slice of a unit begins; that of rank `ranks` is the unit's end.
std::int64_t slice_begin(std::int64_t begin, std::int64_t end, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t blocks = (end - begin) / ParameterTable::kAlignment;
  return begin + blocks * rank / ranks * ParameterTable::kAlignment;
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
    slices_ = {{{.flat_begin = 0, .own_begin = 0, .elements = elements}}};
    counts_ = {{elements}};
    return;
  }
  const std::int64_t most = elements / ParameterTable::kAlignment;
  check(ranks <= most, "a model of {} parameters cannot be divided over {} ranks; {} are the most",
        format_count(table.parameters()), ranks, most);
  counts_.resize(unit_begins_.size() - 1);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<ShardSlice>& slices = slices_.emplace_back();
    std::int64_t own_begin = 0;
    for (std::size_t unit = 0; unit < counts_.size(); ++unit) {
      const bool of_words = sharding == Sharding::full && loss_ranks == LossRanks::vocabulary &&
                            unit_begins_[unit] == table.output().offset;
      const auto begin_of = [&](int of) {
        if (!of_words || of == ranks) {
          return slice_begin(unit_begins_[unit], unit_begins_[unit + 1], of, ranks);
        }
        return unit_begins_[unit] + vocabulary_slice(table, of, ranks).first * table.output().shape[1];
      };
      const ShardSlice slice{.flat_begin = begin_of(rank),
                             .own_begin = own_begin,
                             .elements = begin_of(rank + 1) - begin_of(rank)};
      slices.push_back(slice);
      counts_[unit].push_back(slice.elements);
      own_begin += slice.elements;
    }
  }
}

}  // namespace headroom
