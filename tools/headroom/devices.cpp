#include <fmt/ostream.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/device.h"

namespace headroom {
namespace {

std::string hardware_line(const DeviceDescription& d) {
  if (d.kind == DeviceKind::cuda) {
    return fmt::format("compute capability {}.{}, {} multiprocessors, shared memory {}, L2 {}",
                       d.compute_major, d.compute_minor, d.cores, format_bytes(d.l1_bytes),
                       format_bytes(d.l2_bytes));
  }
  return fmt::format("{} cores, {}, {}; L1d {}, L2 {}, L3 {}", d.cores, name(d.simd),
                     d.amx ? "AMX" : "no AMX", format_bytes(d.l1_bytes), format_bytes(d.l2_bytes),
                     format_bytes(d.l3_bytes));
}

nlohmann::ordered_json to_json(const ListedDevice& listed) {
  const DeviceDescription& d = listed.description;
  const DTypeChoice choice = default_dtype(d);
  nlohmann::ordered_json json = {{"device", to_string(listed.device)},
                                 {"name", d.name},
                                 {"cores", d.cores},
                                 {"l1_bytes", d.l1_bytes},
                                 {"l2_bytes", d.l2_bytes}};
  if (d.kind == DeviceKind::cpu) {
    json["l3_bytes"] = d.l3_bytes;
    json["simd"] = name(d.simd);
    json["amx"] = d.amx;
  } else {
    json["compute_capability"] = fmt::format("{}.{}", d.compute_major, d.compute_minor);
  }
  json["memory_bytes"] = listed.memory.total_bytes;
  json["free_bytes"] = listed.memory.free_bytes;
  json["held_by_others_bytes"] = listed.memory.held_by_others_bytes;
  json["holders"] = nlohmann::ordered_json::array();
  for (const MemoryHolder& holder : listed.memory.holders) {
    json["holders"].push_back({{"process", holder.process}, {"name", holder.name}, {"bytes", holder.bytes}});
  }
  json["default_dtype"] = name(choice.dtype);
  json["default_dtype_reason"] = choice.reason;
  return json;
}

struct Options {
  std::optional<std::string> name;
  bool json = false;
};

void run(const Options& options, std::ostream& out) {
  DeviceList list;
  if (options.name) {
    list.devices.push_back(find_device(parse_device(*options.name)));
  } else {
    list = list_devices();
  }
  if (options.json) {
    nlohmann::ordered_json json = {{"devices", nlohmann::ordered_json::array()},
                                   {"no_cuda_reason", list.no_cuda_reason}};
    for (const ListedDevice& listed : list.devices) json["devices"].push_back(to_json(listed));
    return print_json(json, out);
  }
  for (const ListedDevice& listed : list.devices) {
    const DTypeChoice choice = default_dtype(listed.description);
    fmt::print(out, "{:<8} {}\n", to_string(listed.device), listed.description.name);
    fmt::print(out, "{:<8} {}\n", "", hardware_line(listed.description));
    fmt::print(out, "{:<8} memory {}, free {}, {}\n", "", format_bytes(listed.memory.total_bytes),
               format_bytes(listed.memory.free_bytes), describe_holders(listed.memory));
    fmt::print(out, "{:<8} default dtype {}: {}\n", "", name(choice.dtype), choice.reason);
  }
  if (!list.no_cuda_reason.empty()) fmt::print(out, "no GPU: {}\n", list.no_cuda_reason);
}

}  // namespace

void add_devices(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_argument("device", options->name, "Only this one: cpu or cuda:N");
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer("Example:\n  headroom devices --json");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
