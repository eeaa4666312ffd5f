// What answers have in common as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "headroom/memory/usage.h"

namespace headroom {

using OrderedJson = nlohmann::ordered_json;

// Indented, with a line end. Text that is no UTF-8, such as a path, has U+FFFD where it is not.
[[nodiscard]] inline std::string indented(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

[[nodiscard]] inline OrderedJson json_or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

// The categories that have bytes; null where none has.
[[nodiscard]] inline OrderedJson json_by_category(const CategoryBytes& bytes) {
  OrderedJson json;
  for (int i = 0; i < kCategoryCount; ++i) {
    if (const std::int64_t value = bytes[static_cast<std::size_t>(i)]; value > 0)
      json[std::string(name(static_cast<Category>(i)))] = value;
  }
  return json;
}

// Rows that have a stage, live_bytes and peak_bytes; name_of(stage) names it.
template <class Rows, class NameOf>
[[nodiscard]] OrderedJson json_by_stage(const Rows& stages, const NameOf& name_of) {
  OrderedJson json = OrderedJson::array();
  for (const auto& row : stages) {
    json.push_back(
        {{"stage", name_of(row.stage)}, {"live_bytes", row.live_bytes}, {"peak_bytes", row.peak_bytes}});
  }
  return json;
}

}  // namespace headroom
