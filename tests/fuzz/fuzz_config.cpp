// Any text as a config.json: a model that is valid and reads back equal from what is written of it, or an
// Error.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "headroom/core/error.h"
#include "headroom/model/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headroom::ModelConfig config;
  try {
    config = headroom::parse_model_config(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const headroom::Error& error) {
    if (error.kind() != headroom::ErrorKind::input || std::strchr(error.what(), '\n') != nullptr)
      std::abort();
    return 0;
  }
  headroom::validate(config);
  if (headroom::parse_model_config(headroom::to_json(config)) != config) std::abort();
  if (config.layers <= 4 && headroom::ParameterTable(config).parameters() <= 0) std::abort();
  return 0;
}
