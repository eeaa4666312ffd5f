// A ledger summed up: by stage, and at its peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/memory/ledger.h"

namespace headroom {

// One stage of one phase, over all the times that it was open. The phase itself comes first, as the
// stage without a path.
struct StageUsage {
  Phase phase = Phase::step;
  StagePath stage;
  std::int64_t live_bytes = 0;  // when it last ended
  std::int64_t peak_bytes = 0;  // while it or a stage inside it was open
  CategoryBytes at_peak{};
};
// With an alignment, blocks count as what they take in an arena.
[[nodiscard]] std::vector<StageUsage> usage_by_stage(const Ledger& ledger, Space space,
                                                     std::int64_t alignment = 1);

// Returns the space's live bytes when the phase begins, then after each of its events.
[[nodiscard]] std::vector<std::int64_t> live_bytes(const Ledger::Trace& phase, Space space);

struct LiveBlock {
  std::string name;
  Category category = Category::workspace;
  std::int64_t bytes = 0;
  std::string allocated_in;  // phase/stage
};
// The blocks alive when the space's live bytes were highest, largest first; in one phase, or in any.
[[nodiscard]] std::vector<LiveBlock> blocks_at_peak(const Ledger& ledger, Space space,
                                                    std::optional<Phase> phase = std::nullopt);

}  // namespace headroom
