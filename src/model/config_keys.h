// The one table of the keys that transformers' configuration classes read from a config.json, and of
// what each means to training here. A key of theirs is used, has to have a certain value, or does not change
// training; a key that they do not read is ignored, as there, and named in a note.
// tests/model/transformers_keys.json lists their keys, types and defaults; a test holds this table to the
// list.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/model/config.h"
#include "model/json.h"

namespace headroom {

enum class KeyRole : std::uint8_t { used, must_have_value, does_not_change_training };

// The JSON types that transformers takes for a key, one bit each. They are as strict as there: a whole number
// is no float, and null is a value.
using JsonTypes = std::uint16_t;
namespace json_type {
inline constexpr JsonTypes whole = 1;
inline constexpr JsonTypes real = 2;  // with a point or an exponent
inline constexpr JsonTypes boolean = 4;
inline constexpr JsonTypes text = 8;
inline constexpr JsonTypes whole_list = 16;
inline constexpr JsonTypes text_list = 32;
inline constexpr JsonTypes other_list = 64;
inline constexpr JsonTypes object = 128;
inline constexpr JsonTypes null = 256;
inline constexpr JsonTypes any = 511;
}  // namespace json_type

inline constexpr std::uint8_t kEveryFamily = 0xFF;

struct ConfigKey {
  std::string_view name;
  KeyRole role = KeyRole::used;
  JsonTypes types = json_type::any;
  std::string_view accepted = {};  // of must_have_value: a JSON list; an empty one: the key must not be there
  std::uint8_t families = kEveryFamily;  // that read it: bits 1 << ModelFamily
  std::string_view why = {};             // added to a refusal
};

[[nodiscard]] std::span<const ConfigKey> config_keys();
// Null where the family does not read the key.
[[nodiscard]] const ConfigKey* find_config_key(std::string_view name, ModelFamily family);

// A key of rope_scaling or rope_parameters, and the kinds of rope that use it: bits 1 << RopeKind.
struct RopeKey {
  std::string_view name;
  std::uint8_t kinds = 0;
};
[[nodiscard]] std::span<const RopeKey> rope_keys();
[[nodiscard]] bool uses(RopeKind kind, std::string_view rope_key);

// Refuses values of a type or of a value that the table does not accept, in one line with key and value.
// Returns the keys that the family does not read.
[[nodiscard]] std::vector<std::string> check_config_keys(const JsonReader& json, ModelFamily family);

}  // namespace headroom
