// A seed for each kind of source, drawn from the run's: the run's own streams are taken by the model's
// initial values.
#pragma once

#include <cstdint>

#include "headroom/core/random.h"

namespace headroom {

enum class SourceSeed : std::uint64_t { flat, documents, recall };  // never renumber: a run's bits hang on it

[[nodiscard]] constexpr std::uint64_t source_seed(std::uint64_t run_seed, SourceSeed source) {
  constexpr std::uint64_t kDataStream = 0x6461'7461'0000'0000;  // far from any tensor's number
  return Random(run_seed, kDataStream).bits(static_cast<std::uint64_t>(source));
}

}  // namespace headroom
