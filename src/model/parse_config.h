// The parts of reading a config.json: see parse_model_config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headroom/model/config.h"
#include "model/json.h"

namespace headroom {

inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;

// Adds to `ignored` what is said of rope and does nothing.
[[nodiscard]] RopeSettings parse_rope(const JsonReader& config, std::int64_t max_positions,
                                      std::vector<std::string>& ignored);

}  // namespace headroom
