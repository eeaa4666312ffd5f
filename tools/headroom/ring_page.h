// The picture of a ring's schedule.
#pragma once

#include "headroom/parallel.h"
#include "headroom/report.h"

namespace headroom {

// Who computes what when, and who sends what.
[[nodiscard]] LaneChart schedule_chart(const RingSchedule& schedule, const std::string& title);
// The same in numbers: a row for each rank.
[[nodiscard]] TableSection schedule_table(const RingSchedule& schedule);

}  // namespace headroom
