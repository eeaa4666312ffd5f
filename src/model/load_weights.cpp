#include <map>
#include <set>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/model/safetensors.h"
#include "headroom/model/shards.h"
#include "model/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxIndexBytes = 64 * kMiB;
constexpr std::string_view kWhole = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kOutput = "lm_head.weight";

bool is_there(const fs::path& path) {
  std::error_code ignored;  // what cannot be looked at is not there
  return fs::exists(path, ignored);
}

// The names of the files that an index speaks of, each once and in order.
std::set<std::string> shards_of(const fs::path& index) {
  const std::string source = index.string();
  const Json object = parse_json_object(read_small_file(index, kMaxIndexBytes), source);
  const JsonReader json(object, source);
  const Json* names = json.find("weight_map");
  if (names == nullptr || !names->is_object()) json.refuse("weight_map", "an object, from tensor to file");
  const JsonReader map(*names, fmt::format("{}: weight_map", source));
  std::set<std::string> shards;
  for (const auto& [tensor, file] : names->items()) {
    const std::string shard = map.maybe_text(tensor).value_or("");
    // A name, not a way out of the folder.
    if (!shard.ends_with(".safetensors") ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      map.refuse(tensor, "the name of a .safetensors file in the same folder");
    }
    shards.insert(shard);
  }
  return shards;
}

bool has_weights(const fs::path& directory) {
  return is_there(directory / kWhole) || is_there(directory / kIndex);
}

// The tensors of a folder. As transformers does it, shards are searched whole, whatever the index says of
// their tensors, and of two tensors of one name the later file's counts.
class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& directory) {
    check(has_weights(directory), "{} has neither {} nor {}", directory.string(), kWhole, kIndex);
    const bool whole = is_there(directory / kWhole);
    source_ = (directory / (whole ? kWhole : kIndex)).string();
    const std::set<std::string> shards =
        whole ? std::set<std::string>{std::string(kWhole)} : shards_of(directory / kIndex);
    for (const std::string& shard : shards) {
      opened_.emplace_back(directory / shard);
      for (const SafetensorsEntry& entry : opened_.back().entries()) files_[entry.name] = opened_.size() - 1;
    }
  }

  [[nodiscard]] bool has(std::string_view name) const { return files_.contains(name); }

  // Elements `begin`, begin + 1, ... of a tensor of this name and shape.
  void upload(std::string_view name, const Shape& shape, std::int64_t begin, const TensorPart& to,
              Staging& staging) const {
    const SafetensorsFile& file = file_of(name, shape);
    const SafetensorsEntry& entry = file.at(name, shape);
    staging.upload(to, [&](std::span<std::byte> piece, std::int64_t first) {
      file.read(entry, to.tensor.view().dtype(), begin + first, piece);
    });
  }

  [[nodiscard]] bool equal(std::string_view name, std::string_view other, const Shape& expected) const {
    const SafetensorsFile& file = file_of(name, expected);
    const SafetensorsFile& other_file = file_of(other, expected);
    const SafetensorsEntry& entry = *file.find(name);
    const SafetensorsEntry& other_entry = *other_file.find(other);
    for (const SafetensorsEntry* of : {&entry, &other_entry}) {
      check(of->shape == expected, "{}: tensor {} has shape {}, expected {}", source_, in_quotes(of->name),
            of->shape, expected);
    }
    return file.equal(entry, other_file, other_entry);
  }

 private:
  [[nodiscard]] const SafetensorsFile& file_of(std::string_view name, const Shape& expected) const {
    const auto found = files_.find(name);
    check(found != files_.end(), "{}: tensor {} is missing; expected in shape {}", source_, in_quotes(name),
          expected);
    return opened_[found->second];
  }

  std::string source_;
  std::vector<SafetensorsFile> opened_;
  std::map<std::string, std::size_t, std::less<>> files_;  // from tensor to file
};

bool has_own_output(const WeightFiles& files, const Shape& embedding) {
  return files.has(kEmbedding) && files.has(kOutput) && !files.equal(kEmbedding, kOutput, embedding);
}

}  // namespace

bool has_own_output(const fs::path& directory, const Shape& embedding) {
  return has_weights(directory) && has_own_output(WeightFiles(directory), embedding);
}

void load_weights(const fs::path& directory, const ParameterTable& table, const Tensor& flat,
                  Staging& staging, std::span<const ShardSlice> slices) {
  const WeightFiles files(directory);
  const bool tied = table.find(kOutput) == nullptr;
  check(!tied || !has_own_output(files, table.at(kEmbedding).shape),
        "{}: {} and {} differ, and the model ties them; accepted: equal ones, or tie_word_embeddings false",
        directory.string(), kEmbedding, kOutput);
  for (const Parameter& parameter : table.entries()) {
    const bool by_output =
        tied && parameter.name == kEmbedding && !files.has(kEmbedding) && files.has(kOutput);
    const std::string_view name = by_output ? kOutput : parameter.name;
    if (slices.empty()) {
      files.upload(name, parameter.shape, 0, table.part(flat, parameter), staging);
      continue;
    }
    for_each_overlap(
        slices, parameter.offset, parameter.offset + parameter.shape.elements(),
        [&](std::int64_t begin, std::int64_t own, std::int64_t elements) {
          files.upload(name, parameter.shape, begin - parameter.offset, {flat, own, elements}, staging);
        });
  }
  if (slices.empty()) table.clear_padding(flat, staging);
}

}  // namespace headroom
