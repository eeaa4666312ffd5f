// A value that may be missing, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace headroom {

[[nodiscard]] inline nlohmann::ordered_json json_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace headroom
