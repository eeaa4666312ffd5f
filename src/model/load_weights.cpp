#include <map>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/model/safetensors.h"
#include "model/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxIndexBytes = 64 * kMiB;

// Which file holds which parameter: files in the order of their names, each opened once.
using Shards = std::map<std::string, std::vector<const Parameter*>>;

Shards shards_of(const fs::path& index, const ParameterTable& table) {
  const std::string source = index.string();
  const Json object = parse_json_object(read_small_file(index, kMaxIndexBytes), source);
  const JsonReader json(object, source);
  const Json* names = json.find("weight_map");
  if (names == nullptr || !names->is_object()) json.refuse("weight_map", "an object, from tensor to file");
  const JsonReader map(*names, fmt::format("{}: weight_map", source));
  Shards shards;
  for (const Parameter& parameter : table.entries()) {
    check(names->contains(parameter.name), "{}: tensor '{}' is missing; expected in shape {}", source,
          parameter.name, parameter.shape);
    const std::string shard = map.maybe_text(parameter.name).value_or("");
    // A name, not a way out of the folder.
    if (!shard.ends_with(".safetensors") ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      map.refuse(parameter.name, "the name of a .safetensors file in the same folder");
    }
    shards[shard].push_back(&parameter);
  }
  return shards;
}

}  // namespace

void load_weights(const fs::path& directory, const ParameterTable& table, const TensorView& flat) {
  Shards shards;
  std::error_code ignored;  // what cannot be looked at is not there
  const fs::path whole = directory / "model.safetensors";
  const fs::path index = directory / "model.safetensors.index.json";
  if (fs::exists(whole, ignored)) {
    for (const Parameter& parameter : table.entries()) shards["model.safetensors"].push_back(&parameter);
  } else {
    check(fs::exists(index, ignored), "{} has neither model.safetensors nor model.safetensors.index.json",
          directory.string());
    shards = shards_of(index, table);
  }
  for (const auto& [name, parameters] : shards) {
    const SafetensorsFile file(directory / name);
    for (const Parameter* parameter : parameters) {
      file.read_into(parameter->name, table.view(flat, *parameter));
    }
  }
  table.clear_padding(flat);
}

}  // namespace headroom
