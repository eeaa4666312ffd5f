#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/model/config.h"
#include "headroom/model/safetensors.h"
#include "model/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// A line stays readable whatever a file has in it.
std::string ignored_note(std::span<const std::string> keys) {
  constexpr std::size_t kMostNamed = 12;
  std::vector<std::string> names;
  for (const std::string& key : keys.first(std::min(keys.size(), kMostNamed))) {
    const bool plain = std::ranges::all_of(key, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
             c == '.';
    });
    names.push_back(plain && key.size() <= 60 ? key : in_quotes(key));
  }
  const std::string more =
      keys.size() > kMostNamed ? fmt::format(" and {} more", keys.size() - kMostNamed) : "";
  return fmt::format("config.json: ignored, as transformers does: {}{}", fmt::join(names, ", "), more);
}

FoundModel open_folder(const fs::path& folder) {
  std::error_code unknown;
  // With peft installed transformers adds the adapter to the weights; without it, it does not.
  check(!fs::exists(folder / "adapter_config.json", unknown),
        "{} has an adapter_config.json, and adapters are not read; accepted: weights with the adapter merged",
        folder.string());
  const fs::path file = folder / "config.json";
  ParsedConfig parsed = parse_config_file(read_small_file(file, kMiB), file.string());
  FoundModel found{.config = std::move(parsed.config), .folder = folder, .notes = {}};
  if (!parsed.ignored.empty()) found.notes.push_back(ignored_note(parsed.ignored));
  if (!found.config.tied_embeddings) return found;
  try {
    if (has_own_output(folder, {found.config.vocab, found.config.hidden})) {
      found.config.tied_embeddings = false;
      found.notes.emplace_back(
          "tie_word_embeddings is true, and lm_head.weight differs from the embedding: not tied, as "
          "transformers "
          "does");
    }
  } catch (const Error& error) {
    // Planning needs no weights: half of a download is enough. Loading them refuses what is wrong.
    found.notes.push_back(
        fmt::format("not looked at: whether lm_head.weight differs from the embedding ({})", error.what()));
  }
  return found;
}

}  // namespace

FoundModel open_model(const std::string& name_or_folder) {
  std::error_code unknown;
  const auto built_in = built_in_model_names();
  if (std::ranges::find(built_in, name_or_folder) == built_in.end() &&
      fs::is_directory(name_or_folder, unknown)) {
    return open_folder(name_or_folder);
  }
  return {.config = built_in_model(name_or_folder), .folder = {}, .notes = {}};
}

ModelConfig find_model(const std::string& name_or_folder) {
  return open_model(name_or_folder).config;
}

}  // namespace headroom
