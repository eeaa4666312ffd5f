// What people need of a model besides config.json and weights: its tokenizer, generation settings and chat
// template. A run carries them from the model's folder into its checkpoints, so that transformers'
// AutoTokenizer and generate work on those.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/files.h"

namespace headroom {

class ModelFiles {
 public:
  ModelFiles() = default;  // of a model that came from no folder: none
  // Copies them from a model's folder, or a checkpoint, to a file without a name in `keep_in`: from then on
  // the folder may change or go, and the copies take no memory. Throws where one is no regular file or too
  // large.
  ModelFiles(const std::filesystem::path& model, const std::filesystem::path& keep_in);

  void write_to(const std::filesystem::path& folder) const;

  // A config.json with those keys of the model's own that say how to use it and nothing of its mathematics,
  // such as eos_token_id. Keys that are there already stay.
  [[nodiscard]] std::string complete_config(const std::string& config) const;

 private:
  struct Part {
    std::string name;
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  std::vector<Part> parts_;
  std::optional<MappedFile> copies_;  // one after the other
  std::string keys_ = "{}";           // JSON
};

}  // namespace headroom
