#include "train/state_gather.h"

#include <algorithm>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

// So many that a window is little beside a rank's state, so few that a rehearsal stays short. Small models
// need few.
constexpr std::int64_t kMostWindows = 64;
constexpr std::int64_t kLeastWindowElements = 1 << 16;

std::int64_t window_elements(const Shards& shards) {
  return std::max(round_up(divide_up(shards.flat_elements(), kMostWindows), ParameterTable::kAlignment),
                  kLeastWindowElements);
}

}  // namespace

StateGather::StateGather(Context& context, const Shards& shards, std::vector<const Tensor*> flats)
    : context_(context),
      shards_(shards),
      slices_(shards.slices(context.ranks().rank)),
      own_elements_(shards.elements(context.ranks().rank)),
      flats_(std::move(flats)) {}

std::int64_t StateGather::shared() const {
  return own_elements_ / flats_[current_]->view().elements();
}

void StateGather::next_window() {
  const Tensor& own = *flats_[current_];
  if (end_ == 0) {
    const std::int64_t most = std::min(window_elements(shards_), shards_.flat_elements());
    window_ = context_.allocate({.name = "window of the state",
                                 .category = Category::staging,
                                 .dtype = own.view().dtype(),
                                 .shape = {most / shared()}});
  }
  begin_ = end_;
  end_ = std::min(begin_ + window_elements(shards_), shards_.flat_elements());
  std::vector<Parcel> sends;
  const Ranks& ranks = context_.ranks();
  // The state may be on the host; windows are on the device, where messages begin and end.
  for_each_overlap(slices_, begin_, end_,
                   [&](std::int64_t flat, std::int64_t own_begin, std::int64_t elements) {
                     context_.copy(StreamId::main, in_window(flat, elements),
                                   {own, own_begin / shared(), elements / shared()});
                     if (ranks.rank > 0) sends.push_back({0, in_window(flat, elements)});
                   });
  const std::vector<Parcel> receives = ranks.rank == 0 ? parcels_of_others() : std::vector<Parcel>();
  context_.wait(StreamId::main, context_.exchange(sends, receives, {"gathering of the state"}));
}

TensorPart StateGather::in_window(std::int64_t flat_begin, std::int64_t elements) const {
  return {window_, (flat_begin - begin_) / shared(), elements / shared()};
}

// Unit by unit, as each rank sends them: a window has slices of few units, and a unit slices of all ranks.
std::vector<Parcel> StateGather::parcels_of_others() const {
  std::vector<Parcel> parcels;
  const std::span<const std::int64_t> units = shards_.unit_begins();
  for (std::size_t unit = 0; unit + 1 < units.size(); ++unit) {
    if (units[unit + 1] <= begin_ || units[unit] >= end_) continue;
    const std::span<const std::int64_t> counts = shards_.counts(unit);
    std::int64_t slice_begin = units[unit] + counts.front();
    for (int other = 1; other < context_.ranks().count; ++other) {
      const std::int64_t slice_end = slice_begin + counts[static_cast<std::size_t>(other)];
      const std::int64_t first = std::max(slice_begin, begin_);
      const std::int64_t last = std::min(slice_end, end_);
      if (first < last) parcels.push_back({other, in_window(first, last - first)});
      slice_begin = slice_end;
    }
  }
  return parcels;
}

void StateGather::next_tensor() {
  while (end_ < shards_.flat_elements()) next_window();
  window_ = Tensor();
  begin_ = end_ = 0;
  ++current_;
}

void StateGather::read(const Tensor& flat, std::int64_t begin, std::int64_t elements, Staging& staging,
                       const Staging::Consume& consume) {
  while (flats_[current_] != &flat) next_tensor();
  for (std::int64_t done = 0; done < elements;) {
    while (end_ / shared() <= begin + done) next_window();
    const std::int64_t first = begin + done - begin_ / shared();
    const std::int64_t here = std::min(elements - done, end_ / shared() - begin - done);
    staging.download({window_, first, here}, [&](std::span<const std::byte> piece, std::int64_t offset) {
      consume(piece, done + offset);
    });
    done += here;
  }
}

void StateGather::finish() {
  while (current_ < flats_.size()) next_tensor();
}

}  // namespace headroom
