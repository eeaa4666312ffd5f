// Made-up lifetimes to measure packers on.
#pragma once

#include <cstdint>
#include <vector>

#include "headroom/memory/ledger.h"
#include "headroom/memory/packer.h"

namespace headroom {

// Endpoints uniform over 2 x blocks events, sizes uniform in [1, 1 MB]: nothing to hold on to.
[[nodiscard]] std::vector<BlockLifetime> random_trace(std::int64_t blocks, std::uint64_t seed);

// The rehearsal of a decoder's training step: parameters, gradients and optimizer state for the run; a stack
// of activations that grows through forward and shrinks through backward; workspaces and temporaries that
// cross each other; a loss in chunks. Sizes, how much a layer keeps and the order of frees vary with the
// seed.
[[nodiscard]] Ledger training_step_ledger(std::int64_t layers, std::uint64_t seed);

// How many layers give at least so many blocks.
[[nodiscard]] std::int64_t layers_for_blocks(std::int64_t blocks);

}  // namespace headroom
