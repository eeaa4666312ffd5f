// The parts of reading a config.json: see parse_model_config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/model/config.h"
#include "model/json.h"

namespace headroom {

inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;

// What is wrong with the value of one key of config.json: the message begins with the key.
class KeyError : public Error {
 public:
  KeyError(std::string_view key, std::string_view rest, std::source_location where)
      : Error(ErrorKind::input, fmt::format("{} {}", key, rest), where), key_(key) {}

  [[nodiscard]] const std::string& key() const { return key_; }

 private:
  std::string key_;
};

// Adds to `ignored` what is said of rope and does nothing.
[[nodiscard]] RopeSettings parse_rope(const JsonReader& config, std::int64_t max_positions,
                                      std::vector<std::string>& ignored);

}  // namespace headroom
