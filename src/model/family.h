// The table of model families. A new family is a row here, its keys in config_keys.cpp, and kernels for the
// kinds of layers that are new.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "headroom/model/config.h"

namespace headroom {

// What transformers takes for a key that is not in the file.
struct ConfigDefaults {
  std::int64_t vocab;
  std::int64_t mlp;
  std::int64_t max_positions;
  std::optional<std::int64_t> heads_kv;  // none: as many as there are query heads
  std::optional<std::int64_t> head_dim;  // none: hidden_size over the query heads
  std::int64_t hidden = 4096;
  std::int64_t layers = 32;
  std::int64_t heads_q = 32;
  std::int64_t sliding_window = 4096;
  std::int64_t max_window_layers = 28;
  double rms_epsilon = 1e-6;
};

struct FamilyRow {
  ModelFamily family;
  std::string_view model_type;    // in config.json
  std::string_view architecture;  // in config.json: transformers' class
  NormKind norm;
  MlpKind mlp;
  bool slides;               // its layers may have a window
  bool heads_divide_hidden;  // transformers refuses the others, also where head_dim is given
  ConfigDefaults defaults;
};

[[nodiscard]] std::span<const FamilyRow> model_families();
[[nodiscard]] const FamilyRow& family_row(ModelFamily family);

}  // namespace headroom
