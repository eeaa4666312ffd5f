#include <algorithm>
#include <unordered_map>

#include "headroom/core/error.h"
#include "headroom/eager.h"
#include "headroom/memory/caching_allocator.h"

namespace headroom {
namespace {

// The device's blocks in the order of their requests, and the event of each.
struct Requests {
  std::vector<BlockLifetime> blocks;
  std::vector<const Event*> events;
};

Requests requests_of(const Ledger& ledger) {
  Requests requests;
  std::int64_t time = 0;
  for (const Ledger::Trace& phase : ledger.phases()) {
    std::unordered_map<std::uint32_t, std::size_t> open;  // by id
    for (const Event& event : phase.events) {
      ++time;
      if (event.space != Space::device) continue;
      if (event.kind == EventKind::allocate) {
        if (event.lifetime == Lifetime::phase) open[event.id] = requests.blocks.size();
        requests.blocks.push_back({time, -1, event.bytes});
        requests.events.push_back(&event);
      } else if (event.kind == EventKind::free) {
        requests.blocks[open.at(event.id)].end = time;
      }
    }
  }
  for (BlockLifetime& block : requests.blocks) {
    if (block.end < 0) block.end = time + 1;
  }
  return requests;
}

std::int64_t alive_before(const Requests& requests, std::size_t block) {
  std::int64_t bytes = 0;
  const std::int64_t time = requests.blocks[block].begin;
  for (const BlockLifetime& other : requests.blocks) {
    if (other.begin < time && other.end > time) bytes += other.bytes;
  }
  return bytes;
}

}  // namespace

const StageUsage& EagerMemory::stage(const StagePath& path) const {
  const auto found = std::ranges::find(stages, path, &StageUsage::stage);
  check(found != stages.end(), "the program has no stage '{}'", path.text());
  return *found;
}

EagerMemory eager_memory(const Ledger& ledger, std::int64_t capacity_bytes) {
  const Requests requests = requests_of(ledger);
  const CachingAllocatorResult result = simulate_caching_allocator(requests.blocks, capacity_bytes);
  EagerMemory memory{.live_peak_bytes = result.allocated_peak_bytes,
                     .reserved_bytes = result.reserved_peak_bytes,
                     .stages = usage_by_stage(ledger, Space::device),
                     .failure = {}};
  if (const auto failed = result.failed_block) {
    const Event& event = *requests.events[*failed];
    const StagePath path = ledger.stage_path(event.stage);
    memory.failure = EagerFailure{.block = std::string(ledger.text(event.name)),
                                  .path = path,
                                  .stage = path.text(),
                                  .bytes = result.failed_bytes,
                                  .allocated_bytes = alive_before(requests, *failed)};
  }
  return memory;
}

std::int64_t largest_context(std::int64_t capacity_bytes, std::int64_t limit,
                             const std::function<Ledger(std::int64_t)>& program, std::int64_t start) {
  const auto fits = [&](std::int64_t context) {
    try {
      const Requests requests = requests_of(program(context));
      return !simulate_caching_allocator(requests.blocks, capacity_bytes).failed_block;
    } catch (const Error&) {
      return false;  // more bytes than 64 bits count
    }
  };
  std::int64_t fitting = 0;
  std::int64_t trying = std::min(std::max<std::int64_t>(start, 1), limit);
  while (trying > fitting && fits(trying)) {
    fitting = trying;
    trying = trying > limit / 2 ? limit : 2 * trying;
  }
  std::int64_t failing = std::max(trying, fitting + 1);
  while (failing - fitting > 1) {
    const std::int64_t middle = fitting + (failing - fitting) / 2;
    (fits(middle) ? fitting : failing) = middle;
  }
  return fitting;
}

}  // namespace headroom
