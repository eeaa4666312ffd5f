// A layout: where every allocation of a rehearsal lies. Blocks of the run stand at the bottom, each at an
// offset of its own; above them every phase packs its blocks into the same bytes. The arena is the largest
// phase.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headroom/memory/ledger.h"
#include "headroom/memory/packer.h"

namespace headroom {

struct Layout {
  Ledger rehearsal;
  std::array<std::int64_t, kSpaceCount> reserved_bytes{};
  std::vector<std::int64_t> run_offsets;                 // [n-th allocation for the run]
  std::vector<std::vector<std::int64_t>> phase_offsets;  // [phase][n-th allocation of the phase]

  [[nodiscard]] std::int64_t reserved(Space space) const {
    return reserved_bytes[static_cast<std::size_t>(space)];
  }
};

// Returns the same number for equal layouts, on any machine, so that ranks can compare theirs. Two different
// layouts have the same number once in 2^64.
[[nodiscard]] std::uint64_t hash(const Layout& layout);

[[nodiscard]] Layout make_layout(Ledger rehearsal, std::int64_t alignment = kArenaAlignment);

// The blocks of one space over all phases, each phase once, in the order of the ledger: what an allocator
// that packs nothing in advance would see. Blocks of the run end with the last phase.
[[nodiscard]] std::vector<BlockLifetime> lifetimes(const Ledger& ledger, Space space);

}  // namespace headroom
