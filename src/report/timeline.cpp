#include <algorithm>
#include <optional>

#include "headroom/core/error.h"
#include "headroom/report/page.h"
#include "report/thin.h"

namespace headroom {
namespace {

// A page stays readable and small, whatever the ledger holds.
constexpr std::size_t kMostBlocks = 400;
constexpr std::size_t kMostStages = 1000;
constexpr std::size_t kDepths = 2;  // forward/layer 3; attention and mlp inside it are named in the moments

bool moves(const Event& event, Space space) {
  return event.space == space && (event.kind == EventKind::allocate || event.kind == EventKind::free);
}

std::int64_t change(const Event& event) {
  return event.kind == EventKind::allocate ? event.bytes : -event.bytes;
}

// Where every visit of a stage begins and ends, outermost depths alone; a depth with too many is left out.
std::vector<MemoryTimeline::Stage> stages_of(const Ledger& ledger, const Ledger::Trace& phase, Space space) {
  struct Visit {
    std::uint32_t stage = 0;
    std::int64_t depth = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<Visit> visits;
  std::vector<std::size_t> open;  // visits, outermost first; none for deeper stages
  std::size_t depth = 0;
  std::int64_t moment = 1;  // the next one
  for (const Event& event : phase.events) {
    if (moves(event, space)) ++moment;
    if (event.kind == EventKind::stage_begin && ++depth <= kDepths) {
      open.push_back(visits.size());
      visits.push_back({event.stage, static_cast<std::int64_t>(depth), moment, moment});
    }
    if (event.kind == EventKind::stage_end && depth-- <= kDepths) {
      visits[open.back()].end = moment;
      open.pop_back();
    }
  }
  std::erase_if(visits, [](const Visit& visit) { return visit.begin == visit.end; });
  for (auto deepest = static_cast<std::int64_t>(kDepths); visits.size() > kMostStages; --deepest) {
    std::erase_if(visits, [&](const Visit& visit) { return visit.depth == deepest; });
  }
  std::vector<MemoryTimeline::Stage> stages;
  for (const Visit& visit : visits) {
    stages.push_back({ledger.stage_path(visit.stage).text(), visit.depth, visit.begin, visit.end});
  }
  return stages;
}

}  // namespace

MemoryTimeline memory_timeline(const Ledger& ledger, Phase wanted, Space space) {
  const std::optional<std::size_t> found = ledger.find_phase(wanted);
  if (!found) fail(ErrorKind::input, "the ledger has no phase '{}'", name(wanted));
  const Ledger::Trace& phase = ledger.phases()[*found];
  const CategoryBytes& before = phase.live_before[static_cast<std::size_t>(space)];

  std::vector<std::int64_t> heights = {total(before)};
  for (const Event& event : phase.events) {
    if (moves(event, space)) heights.push_back(heights.back() + change(event));
  }
  MemoryTimeline timeline;
  timeline.title = fmt::format("Memory of {}", name(wanted));
  timeline.moment_count = std::ssize(heights);
  timeline.stages = stages_of(ledger, phase, space);

  const std::vector<std::size_t> kept = visible(std::span<const std::int64_t>(heights));
  timeline.moments.push_back({.number = 0, .live = before});
  CategoryBytes live = before;
  std::size_t number = 0;
  for (const Event& event : phase.events) {
    if (!moves(event, space)) continue;
    live[static_cast<std::size_t>(event.category)] += change(event);
    if (++number != kept[timeline.moments.size()]) continue;
    timeline.moments.push_back({.number = static_cast<std::int64_t>(number),
                                .live = live,
                                .name = std::string(ledger.text(event.name)),
                                .stage = ledger.stage_path(event.stage).text(),
                                .category = event.category,
                                .change_bytes = change(event)});
    if (heights[number] > heights[kept[timeline.peak]]) timeline.peak = timeline.moments.size() - 1;
    if (timeline.moments.size() == kept.size()) break;
  }

  timeline.blocks = blocks_at_peak(ledger, space, wanted);
  for (std::size_t i = kMostBlocks; i < timeline.blocks.size(); ++i) {
    ++timeline.other_blocks;
    timeline.other_bytes += timeline.blocks[i].bytes;
  }
  timeline.blocks.resize(std::min(timeline.blocks.size(), kMostBlocks));
  return timeline;
}

}  // namespace headroom
