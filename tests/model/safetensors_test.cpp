#include "headroom/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"
#include "model/host_tensors.h"

namespace headroom {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A file by hand: length, header, data.
std::string file_of(std::string_view header, std::size_t data_bytes = 0) {
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

SafetensorsHeader parse(std::string_view file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "x.safetensors");
}

constexpr std::string_view kSmall =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"none":{"dtype":"I64","shape":[0],"data_offsets":[24,24]}})";

TEST(Safetensors, ReadsAHeader) {
  const SafetensorsHeader header = parse(file_of(kSmall, 28));
  ASSERT_EQ(header.entries.size(), 3);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "none");
  EXPECT_EQ(header.entries[1].dtype, std::nullopt);
  EXPECT_EQ(header.entries[1].type, "I64");
  EXPECT_EQ(header.find("a")->shape, (Shape{2, 3}));
  EXPECT_EQ(header.find("b")->dtype, DType::bf16);
  EXPECT_EQ(header.find("b")->begin, 24);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_EQ(header.find(""), nullptr);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_offset, 8 + std::ssize(kSmall));
  EXPECT_TRUE(parse(file_of("{}")).entries.empty());
  EXPECT_TRUE(parse(file_of("{}      ")).entries.empty());  // padded as writers do
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = file_of(kSmall, 28);
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW(static_cast<void>(parse(std::string_view(file).substr(0, size))), Error) << size;
  }
  EXPECT_THROW(static_cast<void>(parse(file + "x")), Error);
}

// Whatever is accepted covers the data once, in order, each tensor in as many bytes as its shape needs.
void expect_sound(const SafetensorsHeader& header, std::int64_t file_bytes) {
  std::int64_t covered = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    EXPECT_EQ(entry.begin, covered);
    EXPECT_TRUE(!entry.dtype || entry.end - entry.begin == dense_bytes(*entry.dtype, entry.shape));
    EXPECT_EQ(header.find(entry.name), &entry);
    covered = entry.end;
  }
  EXPECT_EQ(header.data_offset + covered, file_bytes);
}

TEST(Safetensors, SurvivesEveryFlippedBitOfTheHeader) {
  const std::string file = file_of(kSmall, 28);
  int accepted = 0;
  for (std::size_t bit = 0; bit < 8 * (file.size() - 28); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      expect_sound(parse(flipped), std::ssize(file));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.safetensors"));
    }
  }
  EXPECT_GT(accepted, 10);  // a flipped name or metadata is still a header
  EXPECT_LT(accepted, 400);
}

TEST(Safetensors, RefusesLies) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const std::string two =
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":)";
  const std::vector<std::pair<std::string, std::string>> lies = {
      {one(R"("F32")", "[2]", "[0,9223372036854775808]"), "claims bytes 0 to 9223372036854775808 of 8"},
      {one(R"("F32")", "[2]", "[18446744073709551608,0]"), "claims bytes 18446744073709551608 to 0"},
      {one(R"("F32")", "[2]", "[0,18446744073709551616]"), "in its data_offsets"},
      {one(R"("F32")", "[2]", "[8,16]"), "claims bytes 8 to 16 of 8"},
      {one(R"("F32")", "[2]", "[8,0]"), "claims bytes 8 to 0"},
      {one(R"("F32")", "[2]", "[-8,0]"), "has -8 in its data_offsets; accepted: whole numbers"},
      {one(R"("F32")", "[3]", "[0,8]"), "of F32 in shape [3] does not have the 8 bytes"},
      {one(R"("F32")", "[2305843009213693954]", "[0,8]"),
       "does not have the 8 bytes"},  // x 4 is 8 modulo 2^64
      {one(R"("F32")", "[4294967296,4294967296,2]", "[0,8]"), "does not have the 8 bytes"},
      {one(R"("F32")", "[9223372036854775808]", "[0,8]"), "does not have the 8 bytes"},
      {one(R"("F32")", "[-2]", "[0,8]"), "has -2 in its shape"},
      {one(R"("F32")", "[2.0]", "[0,8]"), "has 2.0 in its shape"},
      {one(R"("F32")", R"(["2"])", "[0,8]"), "has \"2\" in its shape"},
      {one(R"("F32")", "[[2]]", "[0,8]"), "has a list in its shape"},
      {one(R"("F32")", "[true]", "[0,8]"), "in its shape"},
      {one(R"("F32")", "null", "[0,8]"), "has null in its shape"},
      {one(R"("F32")", "[1,1,1,1,1,2]", "[0,8]"), "rank over 5"},
      {one(R"("F32")", "[2]", "[0]"), "has 1 data_offsets; accepted: 2"},
      {one(R"("F32")", "[2]", "[0,8,8]"), "more than two data_offsets"},
      {one(R"("F32")", "[2]", R"({"0":8})"), "has an object in its data_offsets"},
      {one(R"("F31")", "[2]", "[0,8]"), "has dtype \"F31\"; accepted: F32"},
      {one("32", "[2]", "[0,8]"), "has 32 in its dtype; accepted: a text"},
      {one(R"(["F32"])", "[2]", "[0,8]"), "has a list in its dtype"},
      {R"({"a":{"dtype":"U8","shape":[8]}})", "lacks one of dtype, shape, data_offsets"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "has dtype twice"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1}})", "has a field \"more\""},
      {R"({"a":5})", "\"a\" is 5 in the header; accepted: an object"},
      {R"({"__metadata__":{"a":1}})", "\"a\" is 1 in the header; accepted: a text"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "\"a\" is an object in the header"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "\"a\" is there twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "\"a\" is there twice"},
      {two + "[3,7]}}", "\"b\" begins at byte 3 of the data, inside another that ends at 4"},
      {two + "[0,4]}}", "inside another"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "bytes 3 to 4 of the data belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "bytes 0 to 4 of the data belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "bytes 4 to 8 of the data belong to no tensor"},
      {"{}", "bytes 0 to 8"},
      {"[]", "no JSON object"},
      {" {}", "no JSON object"},
      {"{", "not JSON from byte"},
      {"{}}", "not JSON from byte"},
      {"{\"a\":" + std::string(100'000, '[') + "}", "\"a\" is a list in the header"},
      {"{\"\xff\":{}}", "not JSON"},
      {R"({"a\nb":5})", "\"a\\nb\" is 5"},
  };
  for (const auto& [header, message] : lies) {
    EXPECT_THAT(error_of([&] { static_cast<void>(parse(file_of(header, 8))); }), HasSubstr(message))
        << header.substr(0, 200);
  }
  std::string zero = file_of("{}       ", 0);
  zero[12] = '\0';
  EXPECT_THROW(static_cast<void>(parse(zero)), Error);
}

TEST(Safetensors, RefusesHeaderLengthsPastTheFile) {
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{1} << 32, std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{100'000'001}}) {
    std::string file = file_of("{}");
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_THAT(error_of([&] { static_cast<void>(parse(file)); }),
                HasSubstr(fmt::format("header of {} bytes", length)));
  }
}

// Every floating-point type of a file into every type of a view, against single conversions.
TEST(Safetensors, ConvertsBetweenTypes) {
  const TemporaryFolder folder;
  const std::vector<float> values = {0.0F,  -0.0F,    1.0F,  -1.5F,    3.14159274F,
                                     1e-6F, 65504.0F, 1e30F, INFINITY, 2.0F / 3};
  const auto count = std::ssize(values);
  const auto stored = [&]<class T>(T) {
    std::string data;
    for (const float value : values) {
      const T element(value);
      data.append(reinterpret_cast<const char*>(&element), sizeof(T));
    }
    return data;
  };
  const auto rounded = [](DType dtype, float value) {
    if (dtype == DType::bf16) return static_cast<float>(BFloat16(value));
    return dtype == DType::f16 ? static_cast<float>(Float16(value)) : value;
  };
  const std::vector<std::tuple<std::string, DType, std::string>> types = {
      {"F32", DType::f32, stored(float{})},
      {"BF16", DType::bf16, stored(BFloat16{})},
      {"F16", DType::f16, stored(Float16{})},
      {"F64", DType::f32, stored(double{})}};
  for (const auto& [type, precision, data] : types) {
    // An odd header, so that nothing in the file is aligned.
    std::string header = fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", type,
                                     count, data.size());
    if (header.size() % 2 == 0) header += ' ';
    put(folder / "file", file_of(header) + data);
    const SafetensorsFile file(folder / "file");
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      std::vector<std::uint32_t> memory(values.size());
      const TensorView view(memory.data(), dtype, {count});
      read_into(file, "a", view);
      for (std::int64_t i = 0; i < count; ++i) {
        const float expected = rounded(dtype, rounded(precision, values[static_cast<std::size_t>(i)]));
        const auto got =
            static_cast<float>(dtype == DType::f32    ? view.data<float>()[i]
                               : dtype == DType::bf16 ? static_cast<float>(view.data<BFloat16>()[i])
                                                      : static_cast<float>(view.data<Float16>()[i]));
        EXPECT_EQ(std::signbit(got), std::signbit(expected));
        EXPECT_EQ(got, expected) << type << " to " << name(dtype) << " of "
                                 << values[static_cast<std::size_t>(i)];
      }
    }
  }
}

TEST(Safetensors, ReadsInPiecesWhatItWrites) {
  const TemporaryFolder folder;
  std::vector<float> values((std::size_t{1} << 21) + 12345);  // over two pieces
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5F;
  std::vector<std::uint16_t> halves = {1, 2, 3, 4, 5, 6};
  const std::vector<NamedView> tensors = {
      {"z.weight", TensorView(values.data(), DType::f32, {std::ssize(values)})},
      {"empty", TensorView(nullptr, DType::f32, {0, 7})},
      {"a.\"quoted\"", TensorView(halves.data(), DType::bf16, {2, 3})}};
  write_safetensors(folder / "file", tensors);
  EXPECT_EQ(names(folder.path()).size(), 1);

  const SafetensorsFile file(folder / "file");
  ASSERT_EQ(file.entries().size(), 3);
  std::vector<float> back(values.size());
  read_into(file, "z.weight", TensorView(back.data(), DType::f32, {std::ssize(back)}));
  EXPECT_EQ(back, values);
  read_into(file, "empty", tensors[1].view);
  std::vector<std::uint16_t> halves_back(6);
  read_into(file, "a.\"quoted\"", TensorView(halves_back.data(), DType::bf16, {2, 3}));
  EXPECT_EQ(halves_back, halves);

  const std::string text = content(folder / "file");
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0);
  const json header = json::parse(text.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  EXPECT_EQ(header["z.weight"]["dtype"], "F32");
  EXPECT_EQ(header["a.\"quoted\""]["shape"], (json{2, 3}));
}

TEST(Safetensors, RefusesToReadIntoTheWrongView) {
  const TemporaryFolder folder;
  put(folder / "file",
      file_of(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
          R"("n":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}})",
          20));
  const SafetensorsFile file(folder / "file");
  std::vector<float> memory(8);
  const auto read = [&](std::string_view name, const TensorView& view) {
    return error_of([&] { read_into(file, name, view); });
  };
  EXPECT_THAT(read("a", TensorView(memory.data(), DType::f32, {3})),
              HasSubstr("\"a\" has shape [2], expected [3]"));
  EXPECT_THAT(read("a", TensorView(memory.data(), DType::f32, {1, 2})),
              HasSubstr("has shape [2], expected [1, 2]"));
  EXPECT_THAT(read("a", TensorView(memory.data(), DType::i32, {2})), HasSubstr("is read into i32"));
  EXPECT_THAT(
      error_of([&] { file.read(*file.find("a"), DType::f32, 1, std::as_writable_bytes(std::span(memory))); }),
      HasSubstr("\"a\" has elements 0 to 2, not 1 to 9"));
  EXPECT_THAT(read("b", TensorView(memory.data(), DType::f32, {3})),
              HasSubstr("\"b\" is missing; expected in shape [3]"));
  EXPECT_THAT(read("i", TensorView(memory.data(), DType::f32, {1})), HasSubstr("holds I64; accepted: F32"));
  EXPECT_THAT(read("n", TensorView(memory.data(), DType::f32, {1})), HasSubstr("holds I32"));
}

TEST(Safetensors, RefusesToWriteWhatOthersCouldNotRead) {
  const TemporaryFolder folder;
  std::vector<float> memory(8);
  const TensorView one(memory.data(), DType::f32, {1});
  const TensorView byte(memory.data(), DType::u8, {1});
  const auto write = [&](std::vector<NamedView> tensors) {
    return error_of([&] { write_safetensors(folder / "file", tensors); });
  };
  EXPECT_THAT(write({{"a", one}, {"a", one}}), HasSubstr("given twice"));
  EXPECT_THAT(write({{"__metadata__", one}}), HasSubstr("given twice"));
  EXPECT_THAT(write({{"b", byte}, {"a", one}}), HasSubstr("wider types first"));
  EXPECT_THAT(write({{"\xff", one}}), HasSubstr("no UTF-8"));
  // More data than a tensor has, and less.
  const auto write_bytes = [&](std::size_t bytes) {
    return error_of([&] {
      SafetensorsWriter file(folder / "file", {{"a", DType::f32, {2}}, {"b", DType::f32, {2}}});
      file.write(std::as_bytes(std::span(memory)).first(8));
      file.write(std::as_bytes(std::span(memory)).first(bytes));
      static_cast<void>(file.commit());
    });
  };
  EXPECT_THAT(write_bytes(12), HasSubstr("past the end of a tensor"));
  EXPECT_THAT(write_bytes(4), HasSubstr("the data of tensor \"b\" is missing"));
  EXPECT_TRUE(names(folder.path()).empty());
}

// A model of a few hundred parameters, each element of which is known from its place.
class LoadWeights : public testing::Test {
 protected:
  LoadWeights() {
    config.vocab = 5;
    config.hidden = 6;
    config.layers = 2;
    config.head_dim = 8;
    config.mlp = 3;
    fill();
  }
  void fill() {
    table = ParameterTable(config);
    values.assign(static_cast<std::size_t>(table.elements()), 0.0F);
    for (const Parameter& parameter : table.entries()) {
      const TensorView view = table.view(flat(values), parameter);
      for (std::int64_t i = 0; i < view.elements(); ++i)
        view.data<float>()[i] = static_cast<float>(parameter.offset + i + 1);
    }
  }
  TensorView flat(std::vector<float>& data) const { return {data.data(), DType::f32, {std::ssize(data)}}; }
  std::vector<NamedView> tensors() {
    std::vector<NamedView> views;
    for (const Parameter& parameter : table.entries())
      views.push_back({parameter.name, table.view(flat(values), parameter)});
    return views;
  }
  std::vector<float> load() {
    std::vector<float> loaded(values.size(), NAN);  // padding too
    load_weights(folder.path(), table, flat(loaded));
    return loaded;
  }
  void write_shards(const json& index) {
    const auto all = tensors();
    write_safetensors(folder / "one.safetensors", std::span(all).first(7));
    write_safetensors(folder / "two.safetensors", std::span(all).subspan(7));
    put(folder / "model.safetensors.index.json", index.dump());
  }
  json index() {
    json map;
    const auto all = tensors();
    for (std::size_t i = 0; i < all.size(); ++i)
      map[all[i].name] = i < 7 ? "one.safetensors" : "two.safetensors";
    return {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  }

  ModelConfig config = built_in_model("demo");
  ParameterTable table{config};
  std::vector<float> values;
  TemporaryFolder folder;
};

TEST_F(LoadWeights, ReadsOneFileAndZeroesThePadding) {
  auto all = tensors();
  all.push_back({"lm_head.weight", all.front().view});  // tied: left alone
  all.push_back({"model.rotary.inv_freq", all.back().view});
  write_safetensors(folder / "model.safetensors", all);
  EXPECT_EQ(load(), values);
}

TEST_F(LoadWeights, ReadsShards) {
  write_shards(index());
  EXPECT_EQ(load(), values);
}

// Which file has what is looked up in the files, as transformers does.
TEST_F(LoadWeights, SearchesTheFilesThatAnIndexNames) {
  json sloppy = index();
  sloppy["weight_map"].erase("model.norm.weight");
  sloppy["weight_map"]["model.embed_tokens.weight"] = "two.safetensors";
  write_shards(sloppy);
  EXPECT_EQ(load(), values);
}

TEST_F(LoadWeights, NamesWhatIsMissingOrOfAnotherShape) {
  const auto message = [&] { return error_of([&] { load(); }); };
  EXPECT_THAT(message(), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));

  auto all = tensors();
  all.erase(all.begin() + 3);
  write_safetensors(folder / "model.safetensors", all);
  EXPECT_THAT(
      message(),
      HasSubstr("tensor \"model.layers.0.self_attn.k_proj.weight\" is missing; expected in shape [8, 6]"));

  all = tensors();
  all[3].view = all[3].view.reshape({6, 8});
  write_safetensors(folder / "model.safetensors", all);
  EXPECT_THAT(
      message(),
      HasSubstr("tensor \"model.layers.0.self_attn.k_proj.weight\" has shape [6, 8], expected [8, 6]"));

  write_safetensors(folder / "model.safetensors", tensors());
  config.tied_embeddings = false;
  fill();
  EXPECT_THAT(message(), HasSubstr("\"lm_head.weight\" is missing"));
}

TEST_F(LoadWeights, RefusesABadIndex) {
  const auto message = [&](const json& bad) {
    write_shards(bad);
    return error_of([&] { load(); });
  };
  json bad = index();
  for (const char* name :
       {"../one.safetensors", "/etc/x.safetensors", "a/b.safetensors", "one.bin", "", ".."}) {
    bad["weight_map"]["model.norm.weight"] = name;
    EXPECT_THAT(message(bad), HasSubstr("accepted: the name of a .safetensors file")) << name;
  }
  bad["weight_map"]["model.norm.weight"] = std::string("one\0.safetensors", 16);
  EXPECT_THAT(message(bad), HasSubstr("accepted: the name of a .safetensors file"));
  bad["weight_map"]["model.norm.weight"] = 7;
  EXPECT_THAT(message(bad), HasSubstr("accepted: a text"));
  bad["weight_map"]["model.norm.weight"] = "three.safetensors";
  EXPECT_THAT(message(bad), HasSubstr("three.safetensors: No such file"));
  for (auto& [tensor, file] : bad["weight_map"].items()) file = "one.safetensors";
  EXPECT_THAT(
      message(bad),
      HasSubstr("model.safetensors.index.json: tensor \"model.layers.0.self_attn.k_norm.weight\" is"));
  EXPECT_THAT(message({{"weight_map", json::object()}}), HasSubstr("is missing; expected in shape"));
  EXPECT_THAT(message({{"weight_map", json::array()}}), HasSubstr("weight_map is a list of 0"));
  EXPECT_THAT(message(json::object()), HasSubstr("weight_map is missing"));
  EXPECT_THAT(message(json::array()), HasSubstr("no JSON object"));
}

}  // namespace
}  // namespace headroom
