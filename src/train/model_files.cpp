#include "headroom/train/model_files.h"

#include <array>
#include <string_view>
#include <system_error>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "model/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// What transformers' tokenizers and generate read from a model's folder.
constexpr std::array<std::string_view, 11> kNames = {"tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "tokenizer.model",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "added_tokens.json",
                                                     "special_tokens_map.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "generation_config.json"};
constexpr std::array<std::string_view, 4> kKeys = {"bos_token_id", "eos_token_id", "initializer_range",
                                                   "use_cache"};
constexpr std::int64_t kMaxBytes = 128 * kMiB;  // the largest tokenizers in use have about 35 MiB

std::string kept_keys(const fs::path& config_path) {
  const Json config = parse_json_object(read_small_file(config_path, kMiB), config_path.string());
  Json kept = Json::object();
  for (const std::string_view key : kKeys) {
    if (const auto found = config.find(key); found != config.end()) kept[std::string(key)] = *found;
  }
  return to_text(kept, config_path.string());
}

}  // namespace

ModelFiles::ModelFiles(const fs::path& model, const fs::path& keep_in)
    : keys_(kept_keys(model / "config.json")) {
  const fs::path copies = keep_in / ".model-files";
  FileWriter writer(copies);
  std::error_code ignored;
  std::size_t end = 0;
  for (const std::string_view name : kNames) {
    const fs::path path = model / name;
    if (!fs::exists(path, ignored)) continue;  // what cannot be looked at is not there
    const MappedFile file(path);
    check(std::ssize(file.bytes()) <= kMaxBytes, "cannot keep {}: it is larger than {}", path.string(),
          format_bytes(kMaxBytes));
    writer.write(file.bytes());
    parts_.push_back({.name = std::string(name), .begin = end, .bytes = file.bytes().size()});
    end += file.bytes().size();
  }
  if (parts_.empty()) return;
  writer.commit();
  copies_.emplace(copies);
  fs::remove(copies, ignored);  // the map keeps the bytes; where the name stays, the next run takes it over
}

void ModelFiles::write_to(const fs::path& folder) const {
  if (!copies_) return;  // the model has none
  for (const Part& part : parts_) {
    const std::span<const std::byte> bytes = copies_->bytes().subspan(part.begin, part.bytes);
    FileWriter file(folder / part.name);
    file.write(bytes);
    file.commit();
  }
  copies_->release(copies_->bytes());
}

std::string ModelFiles::complete_config(const std::string& config) const {
  auto json = nlohmann::ordered_json::parse(config);
  const Json kept = Json::parse(keys_);
  for (const auto& [key, value] : kept.items()) {
    if (!json.contains(key)) json[key] = value;
  }
  return to_text(json, "config.json");
}

}  // namespace headroom
