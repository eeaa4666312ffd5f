#include "headroom/memory/layout.h"

#include <algorithm>
#include <utility>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

constexpr std::int64_t kNever = -1;

// The phase's own blocks of one space, and which allocation each is.
struct PhaseBlocks {
  std::vector<BlockLifetime> blocks;
  std::vector<std::uint32_t> ids;
};

PhaseBlocks phase_blocks(const Ledger::Trace& phase, Space space) {
  PhaseBlocks found;
  std::vector<std::size_t> index_of;  // by id
  for (std::size_t time = 0; time < phase.events.size(); ++time) {
    const Event& event = phase.events[time];
    if (event.lifetime != Lifetime::phase || event.space != space) continue;
    if (event.kind == EventKind::allocate) {
      index_of.resize(std::max<std::size_t>(index_of.size(), event.id + 1));
      index_of[event.id] = found.blocks.size();
      found.blocks.push_back({static_cast<std::int64_t>(time), kNever, event.bytes});
      found.ids.push_back(event.id);
    } else if (event.kind == EventKind::free) {
      found.blocks[index_of[event.id]].end = static_cast<std::int64_t>(time);
    }
  }
  for (std::size_t i = 0; i < found.blocks.size(); ++i) {
    if (found.blocks[i].end == kNever) {
      fail(ErrorKind::runtime, "allocation {} of a phase is never freed in the ledger that is laid out",
           found.ids[i]);
    }
  }
  return found;
}

std::size_t allocations(const Ledger::Trace& phase, Lifetime lifetime) {
  return static_cast<std::size_t>(std::ranges::count_if(phase.events, [&](const Event& event) {
    return event.kind == EventKind::allocate && event.lifetime == lifetime;
  }));
}

}  // namespace

Layout make_layout(Ledger rehearsal, std::int64_t alignment) {
  Layout layout;
  std::array<std::int64_t, kSpaceCount> run_bytes{};
  for (const Ledger::Trace& phase : rehearsal.phases()) {
    for (const Event& event : phase.events) {
      if (event.kind != EventKind::allocate || event.lifetime != Lifetime::run) continue;
      std::int64_t& end = run_bytes[static_cast<std::size_t>(event.space)];
      layout.run_offsets.push_back(end);
      end = checked_add(end, round_up(event.bytes, alignment));
    }
  }
  layout.reserved_bytes = run_bytes;
  for (const Ledger::Trace& phase : rehearsal.phases()) {
    std::vector<std::int64_t>& offsets =
        layout.phase_offsets.emplace_back(allocations(phase, Lifetime::phase));
    for (const Space space : {Space::device, Space::host}) {
      const auto s = static_cast<std::size_t>(space);
      const PhaseBlocks own = phase_blocks(phase, space);
      const Packing packing = pack(own.blocks, alignment);
      for (std::size_t i = 0; i < own.ids.size(); ++i)
        offsets[own.ids[i]] = run_bytes[s] + packing.offsets[i];
      layout.reserved_bytes[s] = std::max(layout.reserved_bytes[s], checked_add(run_bytes[s], packing.bytes));
    }
  }
  layout.rehearsal = std::move(rehearsal);
  return layout;
}

std::uint64_t hash(const Layout& layout) {
  std::uint64_t state = 0xcbf29ce484222325;  // FNV-1a, a number or a byte of text at a time
  const auto add = [&](auto value) {
    state = (state ^ static_cast<std::uint64_t>(value)) * 0x100000001b3;
    state ^= state >> 29;  // of a whole number the high bits count too
  };
  const auto add_text = [&](std::string_view text) {
    add(text.size());
    for (const char letter : text) add(static_cast<unsigned char>(letter));
  };
  const auto add_all = [&](const auto& values) {
    add(values.size());
    for (const auto value : values) add(value);
  };
  add(layout.rehearsal.phases().size());
  for (const Ledger::Trace& phase : layout.rehearsal.phases()) {
    add(phase.phase);
    add(phase.events.size());
    for (const Event& event : phase.events) {
      add(event.kind);
      add(event.category);
      add(event.space);
      add(event.lifetime);
      add(event.stream);
      add(event.id);
      add(event.bytes);
      const StagePath path = layout.rehearsal.stage_path(event.stage);
      add(path.depth());
      for (const Stage& stage : path.stages()) {
        add(stage.kind);
        add(stage.index);
      }
      if (event.kind == EventKind::allocate) add_text(layout.rehearsal.text(event.name));
    }
  }
  add_all(layout.reserved_bytes);
  add_all(layout.run_offsets);
  for (const std::vector<std::int64_t>& offsets : layout.phase_offsets) add_all(offsets);
  return state;
}

std::vector<BlockLifetime> lifetimes(const Ledger& ledger, Space space) {
  std::vector<BlockLifetime> blocks;
  std::vector<std::size_t> for_the_run;
  std::int64_t start = 0;
  for (const Ledger::Trace& phase : ledger.phases()) {
    for (BlockLifetime block : phase_blocks(phase, space).blocks) {
      blocks.push_back({start + block.begin, start + block.end, block.bytes});
    }
    for (std::size_t time = 0; time < phase.events.size(); ++time) {
      const Event& event = phase.events[time];
      if (event.kind != EventKind::allocate || event.lifetime != Lifetime::run || event.space != space)
        continue;
      for_the_run.push_back(blocks.size());
      blocks.push_back({start + static_cast<std::int64_t>(time), 0, event.bytes});
    }
    start += static_cast<std::int64_t>(phase.events.size());
  }
  for (const std::size_t block : for_the_run) blocks[block].end = start;
  return blocks;
}

}  // namespace headroom
