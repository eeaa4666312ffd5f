#include "headroom/plan/links.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "headroom/core/error.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"

namespace headroom {
double parse_link_rate(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes_per_second;
  };
  constexpr std::array kUnits = {Unit{"Gb/s", 1e9 / 8}, Unit{"GB/s", 1e9}, Unit{"Mb/s", 1e6 / 8},
                                 Unit{"MB/s", 1e6}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.name.size());
    if (number.empty() || number.back() < '0' || number.back() > '9') continue;
    return unit.bytes_per_second * parse_number(fmt::format("--link {}: its number", quote(text)), number,
                                                {.most = 1e9, .above = true});
  }
  fail(ErrorKind::input,
       "--link {} is not understood; write a number with Gb/s, GB/s, Mb/s or MB/s, such as 400Gb/s",
       quote(text));
}

NamedLink default_link(const DeviceDescription& device, std::int64_t ranks) {
  constexpr Seconds kNvlinkLatency{5e-6};
  constexpr Seconds kPcieLatency{10e-6};
  constexpr Seconds kNetworkLatency{10e-6};
  constexpr Seconds kEthernetLatency{30e-6};
  const auto named = [](std::string_view name, double bytes_per_second, Seconds latency) {
    const LinkModel model{.latency = latency, .bytes_per_second = bytes_per_second};
    return NamedLink{model, fmt::format("{}: {} (published rate, assumed latency)", name, describe(model))};
  };
  if (device.kind == DeviceKind::cpu) {
    if (ranks <= kRanksOfHost) return {{}, "memory of this host"};
    return named("100 Gb/s Ethernet", 12.5e9, kEthernetLatency);
  }
  // Boards of data centres: compute capability 8.0, 9.0 and 10.0.
  const bool nvlink = device.compute_major >= 8 && device.compute_minor == 0;
  if (ranks > kRanksOfHost) {
    if (!nvlink) return named("100 Gb/s Ethernet", 12.5e9, kEthernetLatency);
    return device.compute_major == 8 ? named("200 Gb/s InfiniBand", 25e9, kNetworkLatency)
                                     : named("400 Gb/s InfiniBand", 50e9, kNetworkLatency);
  }
  if (!nvlink) return named("PCIe", device.host_link_bytes_per_second, kPcieLatency);
  const double rate = device.compute_major == 8 ? 300e9 : device.compute_major == 9 ? 450e9 : 900e9;
  return named("NVLink", rate, kNvlinkLatency);
}

std::string describe(const LinkModel& link) {
  const double rate = link.bytes_per_second;
  const std::string text = !std::isfinite(rate) ? std::string("as fast as memory")
                           : rate >= 1e9        ? fmt::format("{:.4g} GB/s", rate / 1e9)
                                                : fmt::format("{:.4g} MB/s", rate / 1e6);
  const double us = link.latency.count() * 1e6;
  return us >= 1000 ? fmt::format("{}, {:.4g} ms", text, us / 1000) : fmt::format("{}, {:.4g} us", text, us);
}

}  // namespace headroom
