// The table of keys against transformers' own, which tests/parity/list_config_keys.py lists.
#include "model/config_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>

#include "headroom/core/error.h"
#include "headroom/model/config.h"

namespace headroom {
namespace {

Json read_list(const std::string& name) {
  std::ifstream file(HEADROOM_TESTS_FOLDER "/model/" + name);
  return Json::parse(file);
}

Json transformers_keys() {
  return read_list("transformers_keys.json");
}

constexpr std::array kFamilies = {std::pair{"qwen3", ModelFamily::qwen3},
                                  std::pair{"llama", ModelFamily::llama}};

// int | list[int] | None
JsonTypes types_of(std::string_view annotation) {
  static const std::map<std::string_view, JsonTypes> kNames = {
      {"any", json_type::any},
      {"int", json_type::whole},
      {"float", json_type::real},
      {"bool", json_type::boolean},
      {"str", json_type::text},
      {"dict", json_type::object},
      {"list[int]", json_type::whole_list},
      {"list[str]", json_type::text_list},
      {"None", json_type::null},
      {"RopeParameters", json_type::object},
  };
  JsonTypes types = 0;
  while (!annotation.empty()) {
    const std::string_view name = annotation.substr(0, annotation.find(" | "));
    annotation.remove_prefix(std::min(annotation.size(), name.size() + 3));
    types |= kNames.at(name);
  }
  return types;
}

TEST(ConfigKeys, EveryKeyOfTransformersHasALine) {
  const Json list = transformers_keys();
  for (const auto& [name, family] : kFamilies) {
    ASSERT_GT(list[name]["fields"].size(), 30u);
    ASSERT_GT(list[name]["read"].size(), 60u);
    for (const auto& [key, field] : list[name]["fields"].items()) {
      EXPECT_NE(find_config_key(key, family), nullptr) << name << ": " << key;
    }
    for (const Json& key : list[name]["read"]) {
      EXPECT_NE(find_config_key(key.get<std::string>(), family), nullptr) << name << ": " << key;
    }
  }
  for (const Json& key : list["rope"]) {
    EXPECT_NE(std::ranges::find(rope_keys(), key.get<std::string>(), &RopeKey::name), rope_keys().end())
        << key;
  }
}

TEST(ConfigKeys, EveryLineIsAKeyOfTransformers) {
  const Json list = transformers_keys();
  for (const auto& [name, family] : kFamilies) {
    std::set<std::string> known = {"model_type"};
    for (const auto& [key, field] : list[name]["fields"].items()) known.insert(key);
    for (const Json& key : list[name]["read"]) known.insert(key.get<std::string>());
    std::set<std::string_view> seen;
    for (const ConfigKey& key : config_keys()) {
      if ((key.families & (1u << static_cast<unsigned>(family))) == 0) continue;
      EXPECT_TRUE(known.contains(std::string(key.name))) << name << ": " << key.name;
      EXPECT_TRUE(seen.insert(key.name).second) << name << ": " << key.name << " is there twice";
      EXPECT_EQ(key.role == KeyRole::must_have_value, !key.accepted.empty()) << key.name;
    }
  }
}

// Types are as strict as there; where there is none, a line may ask for one all the same.
TEST(ConfigKeys, TypesAreThoseOfTransformers) {
  const Json list = transformers_keys();
  for (const auto& [name, family] : kFamilies) {
    for (const auto& [key, field] : list[name]["fields"].items()) {
      const auto expected = types_of(field["type"].get<std::string>());
      if (expected == json_type::any) continue;
      EXPECT_EQ(find_config_key(key, family)->types, expected) << name << ": " << key;
    }
  }
}

// A key that must have a value has it by default, and a file that leaves it out is read.
TEST(ConfigKeys, DefaultsOfTransformersAreAccepted) {
  const Json list = transformers_keys();
  for (const auto& [name, family] : kFamilies) {
    Json file = {{"model_type", name}};
    for (const auto& [key, field] : list[name]["fields"].items()) file[key] = field["default"];
    EXPECT_TRUE(check_config_keys(JsonReader(file, "defaults"), family).empty());
    const auto from_defaults = parse_model_config(file.dump());
    EXPECT_EQ(from_defaults, parse_model_config(Json{{"model_type", name}}.dump())) << name;
  }
}

// tests/parity/judge_configs.py writes what transformers makes of each.
TEST(ConfigKeys, OddFilesAreReadWhereTransformersTrainsAndRefusedWhereItRaises) {
  const Json list = read_list("odd_configs.json");
  ASSERT_GT(list["rows"].size(), 200u);
  for (const Json& row : list["rows"]) {
    for (const auto& [name, family] : kFamilies) {
      Json file = list["model"];
      file["model_type"] = name;
      file.update(row["change"]);
      const Json unsupported = row.value("unsupported", Json::array());
      const bool reads = row[name] == "trains" &&
                         std::find(unsupported.begin(), unsupported.end(), name) == unsupported.end();
      if (reads) {
        EXPECT_NO_THROW(static_cast<void>(parse_model_config(file.dump()))) << name << row["change"];
      } else {
        EXPECT_THROW(static_cast<void>(parse_model_config(file.dump())), Error) << name << row["change"];
      }
    }
  }
}

}  // namespace
}  // namespace headroom
