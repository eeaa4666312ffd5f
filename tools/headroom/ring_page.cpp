#include "ring_page.h"

#include <algorithm>

#include "headroom/core/bytes.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

double pairs_of(std::span<const ChunkPair> pairs) {
  double sum = 0;
  for (const ChunkPair& pair : pairs) sum += static_cast<double>(pair.pairs);
  return sum;
}

}  // namespace

LaneChart schedule_chart(const RingSchedule& schedule, const std::string& title) {
  constexpr std::size_t kMostArrows = 400;
  LaneChart chart{.title = title};
  double begin = 0;  // of the slot, in pairs of the rank that computes most
  double longest = 0;
  std::vector<double> begins;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    chart.lanes.push_back(fmt::format("rank {}", rank));
    const double pairs = pairs_of(schedule.local(rank));
    longest = std::max(longest, pairs);
    if (pairs == 0) continue;
    chart.boxes.push_back({rank, 0, pairs, rank,
                           fmt::format("rank {} with its own keys: {} pairs", rank,
                                       format_count(static_cast<std::int64_t>(pairs)))});
  }
  double before = 0;
  for (std::int64_t slot = 0; slot < schedule.slots(); ++slot) {
    before = begin;
    begin += longest;
    longest = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const Transfer* transfer = schedule.received(rank, slot);
      if (transfer == nullptr) continue;
      const double pairs = pairs_of(transfer->pairs);
      longest = std::max(longest, pairs);
      const std::int64_t bytes =
          2 * transfer->row_count * schedule.problem().head_dim * size_bytes(schedule.problem().dtype);
      const std::string keys = fmt::format("keys {} to {} of rank {}", transfer->keys.begin,
                                           transfer->keys.end - 1, transfer->owner);
      chart.boxes.push_back({rank, begin, begin + pairs, transfer->owner,
                             fmt::format("step {}: rank {} with {}: {} pairs", transfer->step, rank, keys,
                                         format_count(static_cast<std::int64_t>(pairs)))});
      if (chart.arrows.size() == kMostArrows) continue;
      chart.arrows.push_back(
          {transfer->owner, rank, before, begin,
           fmt::format("step {}: {} to rank {}: {}", transfer->step, keys, rank, format_bytes(bytes))});
    }
  }
  chart.note = fmt::format(
      "A box is as wide as the pairs that a rank computes, and has the colour of the rank whose keys they "
      "are. An "
      "arrow is K and V on the way, while the step before is computed. {} transfers in all.",
      format_count(std::ssize(schedule.transfers())));
  return chart;
}

TableSection schedule_table(const RingSchedule& schedule) {
  Table table({"rank", "pieces", "tokens", "pairs", "sent forward", "sent backward"});
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    std::string pieces;
    const auto& own = schedule.partition().pieces[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < own.size() && i < 4; ++i) {
      pieces += fmt::format("{}{}-{}", i == 0 ? "" : ", ", own[i].begin, own[i].end - 1);
    }
    if (own.size() > 4) pieces += fmt::format(" and {} more", own.size() - 4);
    table.add({std::to_string(rank), pieces, format_count(schedule.partition().tokens(rank)),
               format_count(schedule.pairs(rank)), bytes_cell(schedule.sent_bytes(rank, Pass::forward)),
               bytes_cell(schedule.sent_bytes(rank, Pass::backward))});
  }
  return {.title = "What each rank holds, computes and sends", .table = table};
}

}  // namespace headroom
