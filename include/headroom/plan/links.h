// Links between ranks: as people write them, and those that a catalogue's devices have.
#pragma once

#include <string>
#include <string_view>

#include "headroom/comm/link_model.h"
#include "headroom/core/device.h"

namespace headroom {

// Ranks of one host, which a GPU's own links connect. More of them are taken to be on several hosts.
inline constexpr std::int64_t kRanksOfHost = 8;

// Bytes per second of "400Gb/s", "50GB/s", "100Mb/s" or "12MB/s". Throws with what is accepted.
[[nodiscard]] double parse_link_rate(std::string_view text);

struct NamedLink {
  LinkModel model;
  std::string name;  // with its rate and latency, and where they come from
};
// The link of a rank where nobody names one: on one host that of the device, beyond it a network.
[[nodiscard]] NamedLink default_link(const DeviceDescription& device, std::int64_t ranks);
// In words: "50 GB/s, 10 us".
[[nodiscard]] std::string describe(const LinkModel& link);

}  // namespace headroom
