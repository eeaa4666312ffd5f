// What `headroom bench ring` tells of its rows: tables, JSON, a page, and the choice between the ways.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "ring_measure.h"

namespace headroom {

[[nodiscard]] nlohmann::ordered_json to_json(const RingRow& row, std::string_view transport);
[[nodiscard]] Table ring_table(const std::vector<RingRow>& rows);
// Of the rows over a link: every pass as it was measured over the link and without it, and as predicted.
[[nodiscard]] Table link_table(const std::vector<RingRow>& rows);
[[nodiscard]] Page ring_page(const std::vector<RingRow>& rows, std::string_view transport);
// For every ring over a link, the way that the play of the schedule picks with the rates that were reached
// here and the link's.
void print_choices(const std::vector<RingRow>& rows, std::ostream& out);

}  // namespace headroom
