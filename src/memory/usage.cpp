#include "headroom/memory/usage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

std::string place(const Ledger& ledger, const Ledger::Trace& phase, std::uint32_t stage) {
  std::string text(name(phase.phase));
  const std::string path = ledger.stage_path(stage).text();
  return path.empty() ? text : text + "/" + path;
}

// Live bytes before the phase, then after each event of it; blocks rounded up to the alignment. Returns the
// last.
template <class Visit>
CategoryBytes replay(const Ledger::Trace& phase, Space space, CategoryBytes live, std::int64_t alignment,
                     Visit visit) {
  visit(nullptr, live);
  for (const Event& event : phase.events) {
    const auto category = static_cast<std::size_t>(event.category);
    if (event.space == space && event.kind == EventKind::allocate)
      live[category] += round_up(event.bytes, alignment);
    if (event.space == space && event.kind == EventKind::free)
      live[category] -= round_up(event.bytes, alignment);
    visit(&event, live);
  }
  return live;
}

template <class Visit>
void replay(const Ledger::Trace& phase, Space space, Visit visit) {
  replay(phase, space, phase.live_before[static_cast<std::size_t>(space)], 1, visit);
}

}  // namespace

std::vector<StageUsage> usage_by_stage(const Ledger& ledger, Space space, std::int64_t alignment) {
  std::vector<StageUsage> rows;
  CategoryBytes held{};  // by the run: all that is left after a phase
  for (const Ledger::Trace& phase : ledger.phases()) {
    std::map<std::uint32_t, std::size_t> row_of;
    std::vector<std::size_t> open;  // rows of the stages that are open, outermost first
    if (alignment == 1) held = phase.live_before[static_cast<std::size_t>(space)];
    held = replay(phase, space, held, alignment, [&](const Event* event, const CategoryBytes& live) {
      const bool begins = event == nullptr || event->kind == EventKind::stage_begin;
      if (begins) {
        const std::uint32_t stage = event == nullptr ? 0 : event->stage;
        const auto [found, added] = row_of.emplace(stage, rows.size());
        if (added) rows.push_back({phase.phase, ledger.stage_path(stage), 0, 0, {}});
        open.push_back(found->second);
      }
      const std::int64_t bytes = total(live);
      for (const std::size_t row : open) {
        rows[row].live_bytes = bytes;
        if (bytes <= rows[row].peak_bytes) continue;
        rows[row].peak_bytes = bytes;
        rows[row].at_peak = live;
      }
      if (event != nullptr && event->kind == EventKind::stage_end) open.pop_back();
    });
  }
  return rows;
}

std::vector<std::int64_t> live_bytes(const Ledger::Trace& phase, Space space) {
  std::vector<std::int64_t> bytes;
  replay(phase, space, [&](const Event*, const CategoryBytes& live) { bytes.push_back(total(live)); });
  return bytes;
}

std::vector<LiveBlock> blocks_at_peak(const Ledger& ledger, Space space, std::optional<Phase> only) {
  // First find the moment, then collect what is alive then.
  std::size_t peak_phase = 0;
  std::int64_t peak_events = 0;
  std::int64_t peak_bytes = -1;
  for (std::size_t p = 0; p < ledger.phases().size(); ++p) {
    if (only && ledger.phases()[p].phase != *only) continue;
    std::int64_t events = 0;
    replay(ledger.phases()[p], space, [&](const Event* event, const CategoryBytes& live) {
      events += event != nullptr;
      if (const std::int64_t bytes = total(live); bytes > peak_bytes) {
        std::tie(peak_phase, peak_events, peak_bytes) = std::tuple(p, events, bytes);
      }
    });
  }
  std::vector<LiveBlock> blocks;
  for (std::size_t p = 0; p <= peak_phase && p < ledger.phases().size(); ++p) {
    const Ledger::Trace& phase = ledger.phases()[p];
    const std::size_t count = p == peak_phase ? static_cast<std::size_t>(peak_events) : phase.events.size();
    std::map<std::uint32_t, const Event*> alive;  // of the phase, by id
    for (const Event& event : std::span(phase.events).first(count)) {
      if (event.space != space) continue;
      const bool allocates = event.kind == EventKind::allocate;
      if (allocates && event.lifetime == Lifetime::run) {
        blocks.push_back({std::string(ledger.text(event.name)), event.category, event.bytes,
                          place(ledger, phase, event.stage)});
      }
      if (event.lifetime != Lifetime::phase) continue;
      if (allocates) alive[event.id] = &event;
      if (event.kind == EventKind::free) alive.erase(event.id);
    }
    if (p != peak_phase) continue;
    for (const auto& [id, event] : alive) {
      blocks.push_back({std::string(ledger.text(event->name)), event->category, event->bytes,
                        place(ledger, phase, event->stage)});
    }
  }
  std::ranges::stable_sort(blocks, std::greater{}, &LiveBlock::bytes);
  return blocks;
}

}  // namespace headroom
