// The files of the table: every file that the program reads or writes, as something else than it should be.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/bad_inputs.h"
#include "cli/run.h"
#include "core/temporary_folder.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Line = std::vector<std::string>;

constexpr const char* kPrecious = "precious";

// What may stand where a file is expected, with the words of the message.
struct Obstacle {
  std::string named;
  std::function<void(const fs::path&)> put_at;
};

std::vector<Obstacle> obstacles(const fs::path& folder) {
  return {{"named pipe", [](const fs::path& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
          {"folder", [](const fs::path& path) { fs::create_directory(path); }},
          {"symbolic link",
           [](const fs::path& path) { fs::create_symlink(path.filename(), path); }},  // to itself
          {"socket", [folder](const fs::path& path) {
             const int number = socket(AF_UNIX, SOCK_STREAM, 0);
             sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
             const std::string name = (folder / "s").string();  // short: an address has 108 bytes
             std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
             ASSERT_EQ(bind(number, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
             close(number);
             fs::rename(name, path);
           }}};
}

std::vector<Obstacle> obstacles_to_reading(const fs::path& folder) {
  std::vector<Obstacle> all = obstacles(folder);
  all.push_back({"device", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); }});
  all.push_back({"at most", [](const fs::path& path) {
                   put(path, "");
                   fs::resize_file(path, std::uintmax_t{1} << 40);
                 }});
  return all;
}

std::vector<Obstacle> obstacles_to_writing(const fs::path& folder) {
  std::vector<Obstacle> all = obstacles(folder);
  all.push_back(
      {"symbolic link", [folder](const fs::path& path) { fs::create_symlink(folder / kPrecious, path); }});
  all.push_back({"symbolic link", [](const fs::path& path) { fs::create_symlink("/dev/null", path); }});
  return all;
}

class Files {
 public:
  explicit Files(const fs::path& folder) : folder_(folder) {
    put(folder / kPrecious, "kept");
    // Two more steps are to come, so that it can be resumed.
    const fs::path run = folder / "run";
    const CliResult result =
        run_command(train({"--out", run.string(), "--steps", "3", "--save-every", "1", "--keep-last", "3"}));
    EXPECT_EQ(result.code, 0) << result.err;
    for (const char* step : {"step-00000002", "step-00000003"}) fs::remove_all(run / step);
  }

  std::vector<BadInput> rows;

  void add(Line line, std::string named, int code = 2) {
    rows.push_back({.arguments = std::move(line), .named = std::move(named), .code = code});
  }

  [[nodiscard]] static Line train(const Line& more) {
    Line line = {"train", "--model", "demo", "--data",   "recall", "--context",
                 "64",    "--steps", "1",    "--budget", "64MiB",  "--json"};
    for (std::size_t i = 0; i < more.size(); i += 2) {
      const auto found = std::ranges::find(line, more[i]);
      if (found != line.end()) {
        *(found + 1) = more[i + 1];
      } else {
        line.insert(line.end(), more.begin() + static_cast<std::ptrdiff_t>(i),
                    more.begin() + static_cast<std::ptrdiff_t>(i + 2));
      }
    }
    return line;
  }
  [[nodiscard]] Line train_new(const Line& more) {
    Line line = train(more);
    if (std::ranges::find(line, "--out") == line.end())
      line.insert(line.end(), {"--out", fresh("out").string()});
    return line;
  }
  [[nodiscard]] static Line plan(const Line& more) {
    Line line = {"plan", "--context", "64"};
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }

  // A path that nothing has yet.
  [[nodiscard]] fs::path fresh(std::string_view name = "f") {
    return folder_ / fmt::format("{}{}", name, count_++);
  }
  [[nodiscard]] fs::path file(std::string_view text, std::string_view ending = "") {
    const fs::path path = fresh().string() + std::string(ending);
    put(path, text);
    return path;
  }
  // A copy of the model, or of the whole run.
  [[nodiscard]] fs::path model() {
    const fs::path path = fresh("model");
    fs::create_directory(path);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(checkpoint() / name, path / name);
    return path;
  }
  [[nodiscard]] fs::path run() {
    const fs::path path = fresh("run");
    fs::copy(folder_ / "run", path, fs::copy_options::recursive);
    return path;
  }
  [[nodiscard]] fs::path checkpoint() const { return folder_ / "run" / "step-00000001"; }
  [[nodiscard]] const fs::path& folder() const { return folder_; }

  // One file of a copy is replaced by every obstacle.
  void reading(const std::function<fs::path()>& copy, const std::string& name,
               const std::function<Line(const fs::path&)>& line) {
    for (const Obstacle& obstacle : obstacles_to_reading(folder_)) {
      const fs::path path = copy();
      fs::remove_all(path / name);
      obstacle.put_at(path / name);
      add(line(path), name);
    }
  }
  void contents(const std::function<fs::path()>& copy, const std::string& name,
                const std::vector<std::string>& texts, const std::function<Line(const fs::path&)>& line) {
    for (const std::string& text : texts) {
      const fs::path path = copy();
      put(path / name, text);
      add(line(path), name);
    }
  }

 private:
  fs::path folder_;
  int count_ = 0;
};

std::vector<std::string> no_json_object() {
  return {"",
          "{",
          "[]",
          "null",
          "42",
          "\"text\"",
          "{\"a\":1}{",
          "{\"a\":1,}",
          "{'a':1}",
          "{\"a\":nan}",
          "{\"a\":1e999}",
          "{\"a\":\"\xff\"}",
          "{\"a\":\"\x1b[31m\"}",
          std::string("{\"a\":1}\0", 8),
          "\xff\xfe{\0}\0",
          std::string(100'000, '['),
          std::string(100'000, '{'),
          [] {
            std::string deep;
            for (int i = 0; i < 50'000; ++i) deep += "{\"a\":";
            return deep;
          }(),
          std::string(4096, '\0')};
}

void add_configs(Files& files) {
  const auto copy = [&] { return files.model(); };
  const auto line = [](const fs::path& model) { return Files::plan({"--model", model.string()}); };
  files.reading(copy, "config.json", line);
  files.contents(copy, "config.json", no_json_object(), line);
  const Json good = Json::parse(content(files.checkpoint() / "config.json"));
  const std::vector<Json> bad = {0, -1, "8", 1.5, Json::array(), true, 9'223'372'036'854'775'807, 1e300};
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "head_dim"}) {
    for (const Json& value : bad) {
      const fs::path model = files.model();
      Json config = good;
      config[key] = value;
      put(model / "config.json", config.dump());
      files.add(line(model), "config.json");
    }
    const fs::path model = files.model();
    put(model / "config.json", good.dump().insert(1, fmt::format("\"{}\":8,", key)));  // twice
    files.add(line(model), key);
  }
  for (const int layers : {10'000, 10'001}) {  // deeper than what is planned, and than what is read
    const fs::path model = files.model();
    Json config = good;
    config["num_hidden_layers"] = layers;
    put(model / "config.json", config.dump());
    const std::string name = model.string();
    for (const Line& command : std::vector<Line>{Files::plan({"--model", name}),
                                                 Files::plan({"--model", name, "--runtime", "pytorch"}),
                                                 {"profile", "--model", name, "--context", "64"},
                                                 {"bench", "step", "--model", name, "--context", "64"},
                                                 files.train_new({"--model", name})}) {
      files.add(command, "layers");
      files.rows.back().seconds = 5;
    }
  }
  const fs::path without = files.model();
  fs::remove(without / "config.json");
  files.add(line(without), "config.json");
  files.add(Files::plan({"--model", files.file("x").string()}), "model");
  files.add(Files::plan({"--model", (files.folder() / kPrecious / "below").string()}), "model");
  for (const Obstacle& obstacle : obstacles(files.folder())) {
    const fs::path path = files.fresh();
    obstacle.put_at(path);
    files.add(Files::plan({"--model", path.string()}), obstacle.named == "folder" ? "config.json" : "");
  }
}

// A safetensors file with another header before the same data.
std::string with_header(const std::string& file, const std::string& header) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const std::uint64_t size = header.size();
  std::string result(sizeof(size), '\0');
  std::memcpy(result.data(), &size, sizeof(size));
  return result + header + file.substr(sizeof(length) + length);
}

std::vector<std::string> bad_safetensors(const std::string& good) {
  std::uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof(length));
  const std::string text = good.substr(sizeof(length), length);
  std::vector<std::string> files;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{4}, std::size_t{8}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
    files.push_back(good.substr(0, size));
  }
  files.push_back(good + "x");
  for (const std::uint64_t bad : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 27,
                                  std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    std::string file = good;
    std::memcpy(file.data(), &bad, sizeof(bad));
    files.push_back(file);
  }
  for (const std::string& header : no_json_object()) files.push_back(with_header(good, header));
  const auto edited = [&](const std::function<void(Json&)>& edit) {
    Json header = Json::parse(text);
    edit(header);
    files.push_back(with_header(good, header.dump()));
  };
  const std::string name = "model.norm.weight";
  edited([&](Json& header) { header.erase(name); });
  edited([&](Json& header) { header[name]["dtype"] = "I64"; });
  edited([&](Json& header) { header[name]["dtype"] = "F99"; });
  edited([&](Json& header) { header[name]["shape"] = {127}; });
  edited([&](Json& header) { header[name]["shape"] = {-128}; });
  edited([&](Json& header) { header[name]["shape"] = {1, 1, 1, 1, 1, 1, 128}; });
  edited([&](Json& header) { header[name]["shape"] = {std::uint64_t{1} << 63, 2}; });
  edited([&](Json& header) { header[name]["shape"] = "128"; });
  edited([&](Json& header) { header[name]["data_offsets"] = {0, 512}; });
  edited([&](Json& header) { header[name]["data_offsets"] = {512, 0}; });
  edited([&](Json& header) { header[name]["data_offsets"] = {0, std::uint64_t{1} << 62}; });
  edited([&](Json& header) { header[name]["data_offsets"] = {0}; });
  edited([&](Json& header) { header[name] = 1; });
  edited([&](Json& header) { header["__metadata__"] = 1; });
  return files;
}

void add_weights(Files& files) {
  const auto copy = [&] { return files.model(); };
  const auto line = [&](const fs::path& model) { return files.train_new({"--model", model.string()}); };
  files.reading(copy, "model.safetensors", line);
  files.contents(copy, "model.safetensors",
                 bad_safetensors(content(files.checkpoint() / "model.safetensors")), line);

  for (const char* name : {"tokenizer.json", "generation_config.json"}) {  // checkpoints carry them along
    for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
      if (obstacle.named == "symbolic link") continue;  // to nowhere: it is not there
      const fs::path model = files.model();
      obstacle.put_at(model / name);
      files.add(line(model), name);
    }
  }

  const auto sharded = [&] {
    const fs::path model = files.model();
    fs::rename(model / "model.safetensors", model / "shard.safetensors");
    return model;
  };
  const std::string index = "model.safetensors.index.json";
  files.add(line(sharded()), "neither model.safetensors");
  files.reading(sharded, index, line);
  files.contents(sharded, index, no_json_object(), line);
  const auto mapped = [](const Json& to) {
    Json map;
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) map[name] = to;
    return Json{{"weight_map", map}}.dump();
  };
  files.contents(sharded, index,
                 {"{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", mapped("../shard.safetensors"),
                  mapped("/etc/passwd"), mapped("x.txt"), mapped(1), mapped(nullptr), mapped(""),
                  mapped(".."), mapped(std::string("a\0.safetensors", 14))},
                 line);
  const fs::path missing = sharded();
  put(missing / index, mapped("missing.safetensors"));
  files.add(line(missing), "missing.safetensors");
  const auto all_to = [&](const fs::path& model, const std::string& shard) {
    const std::string file = content(files.checkpoint() / "model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const Json header = Json::parse(file.substr(sizeof(length), length));
    Json map;
    for (const auto& [name, entry] : header.items()) map[name] = shard;
    put(model / index, Json{{"weight_map", map}}.dump());
  };
  for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
    const fs::path model = sharded();
    all_to(model, "other.safetensors");
    obstacle.put_at(model / "other.safetensors");
    files.add(line(model), "other.safetensors");
  }
}

void add_data(Files& files) {
  const auto data = [&](const fs::path& path) {
    files.add(files.train_new({"--data", path.string()}), path.stem().string().substr(0, 40));
  };
  for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
    if (obstacle.named == "at most") continue;  // a mapped file may be as large as it likes
    const fs::path path = files.fresh();
    obstacle.put_at(path);  // the folder is one without documents
    data(path);
  }
  data(files.file(""));
  data(files.file("too short"));
  data(files.file("odd", ".bin"));
  data(files.file(std::string(1000, '\x7f'), ".bin"));  // tokens of 32,639
  data(files.file(std::string(1002, 'x'), ".bin").string() + ":uint32");
  data(files.file(std::string(1000, 'x'), ".bin").string() + ":uint8");
  data(files.folder() / std::string(300, 'x'));
  data(files.folder() / kPrecious / "below");
  const fs::path empty_files = files.fresh();
  fs::create_directory(empty_files);
  put(empty_files / "a", "");
  data(empty_files);
  const fs::path pipes = files.fresh();
  fs::create_directory(pipes);
  EXPECT_EQ(mkfifo((pipes / "a").c_str(), 0600), 0);
  data(pipes);
  if (geteuid() != 0) {  // root reads everything
    const fs::path locked = files.file(std::string(1000, 'x'));
    fs::permissions(locked, fs::perms::none);
    data(locked);
  }

  const auto documents = [&](const fs::path& path) {
    files.add({"bench", "attention", "--seq", "16", "--heads", "1", "--steps", "1", "--mask",
               "causal+documents:" + path.string()},
              path.empty() ? "documents" : path.filename().string());
  };
  for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
    const fs::path path = files.fresh();
    obstacle.put_at(path);
    documents(path);
  }
  for (const char* text :
       {"x", "-1", "1.5", "010", "0x4", "4 four", "99999999999999999999", "\xff\xfe", "4,4", "nan"}) {
    documents(files.file(text));
  }
  documents(files.fresh());
  documents("");
}

void add_rates(Files& files) {
  const auto plan_with = [&](const fs::path& path) {
    files.add(Files::plan({"--model", "demo"}), path.filename().string());
    files.rows.back().environment = {{"HEADROOM_RATES", path.string()}};
  };
  for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
    const fs::path path = files.fresh();
    obstacle.put_at(path);
    if (obstacle.named != "symbolic link") plan_with(path);  // a link to nowhere is no file
  }
  for (const std::string& text : no_json_object()) plan_with(files.file(text));
  const auto rates = [](const Json& kernel) {
    return Json{{"machine", describe_cpu().name},
                {"cores", describe_cpu().cores},
                {"dtypes", {{"f32", {{"matmul", kernel}}}}}};
  };
  const Json good = {{"flops_per_second", 1e9}, {"bytes_per_second", 1e9}, {"start_seconds", 0}};
  for (const char* key : {"machine", "cores", "dtypes"}) {
    for (const Json& bad : {Json(nullptr), Json(1.5), Json::array()}) {
      Json json = rates(good);
      json[key] = bad;
      plan_with(files.file(json.dump()));
    }
  }
  for (const char* key : {"flops_per_second", "bytes_per_second", "start_seconds"}) {
    for (const Json& bad : {Json(nullptr), Json(-1), Json("1"), Json(1e300), Json::array()}) {
      Json kernel = good;
      kernel[key] = bad;
      plan_with(files.file(rates(kernel).dump()));
    }
  }
  for (const char* key : {"flops_per_second", "bytes_per_second"}) {
    for (const double bad : {1e-300, 0.5}) {
      Json kernel = good;
      kernel[key] = bad;
      plan_with(files.file(rates(kernel).dump()));
    }
  }
  plan_with(files.file(rates(1).dump()));
  plan_with(files.file(rates(Json::array()).dump()));
  for (const Obstacle& obstacle : obstacles_to_writing(files.folder())) {
    const fs::path path = files.fresh();
    obstacle.put_at(path);
    files.add({"bench", "step", "--context", "16", "--steps", "1", "--calibrate"}, obstacle.named);
    files.rows.back().environment = {{"HEADROOM_RATES", path.string()}};
  }
}

void add_outputs(Files& files) {
  const std::vector<Line> lines = {
      {"plan", "--model", "demo", "--context", "64", "--html"},
      {"profile", "--model", "demo", "--context", "64", "--steps", "1", "--html"},
      {"profile", "--model", "demo", "--context", "64", "--steps", "1", "--trace"},
      {"bench", "attention", "--seq", "16", "--steps", "1", "--html"},
      {"bench", "loss", "--tokens", "16", "--vocab", "32", "--steps", "1", "--html"},
      {"bench", "ring", "--ranks", "2", "--seq", "16", "--steps", "1", "--html"},
      {"bench", "step", "--context", "16", "--steps", "1", "--html"},
      files.train_new({"--html", ""})};
  for (const Line& command : lines) {
    const auto to = [&](const fs::path& path, const std::string& named) {
      Line line = command;
      const auto found = std::ranges::find(line, "--html");
      if (found != line.end() && found + 1 != line.end()) {
        *(found + 1) = path.string();
      } else {
        line.push_back(path.string());
      }
      files.add(line, named);
    };
    for (const Obstacle& obstacle : obstacles_to_writing(files.folder())) {
      const fs::path path = files.fresh("page");
      obstacle.put_at(path);
      to(path, obstacle.named);
      const fs::path blocked = files.fresh("page");
      obstacle.put_at(files.folder() / fmt::format(".{}.tmp", blocked.filename().string()));
      to(blocked, obstacle.named);
    }
    to("", "");
    to("/", "");
    to(files.folder() / "", "");
    to(files.folder() / "no/such/page", "no folder");
    to(files.folder() / kPrecious / "page", "no folder");
    to(files.folder() / std::string(252, 'x'), "too long");
  }
}

void add_runs(Files& files) {
  const auto out = [&](const fs::path& path, const std::string& named) {
    files.add(Files::train({"--out", path.string()}), named);
  };
  for (const Obstacle& obstacle : obstacles(files.folder())) {
    if (obstacle.named == "folder") continue;
    const fs::path path = files.fresh();
    obstacle.put_at(path);
    out(path, path.filename().string());
  }
  out(files.folder() / kPrecious, kPrecious);
  out(files.folder() / kPrecious / "below", "below");
  out(files.folder() / std::string(300, 'x'), "xxx");
  out(files.folder() / "run", "--resume");

  const auto resume = [](const fs::path& run) {
    Line line = Files::train({"--out", run.string(), "--steps", "3"});
    line.emplace_back("--resume");
    return line;
  };
  const auto copy = [&] { return files.run(); };
  const std::string step = "step-00000001/";
  files.add(resume(files.folder() / "no such run"), "no checkpoint");
  for (const Line& other : std::vector<Line>{
           {"--seed", "7"}, {"--batch", "2"}, {"--data", "recall:keys=2"}, {"--learning-rate", "1"}}) {
    Line line = Files::train({"--out", files.run().string(), "--steps", "3", other[0], other[1]});
    line.emplace_back("--resume");
    files.add(line, other[0].substr(2, 4));
  }
  for (const char* name : {"state.json", "config.json"}) {
    files.contents(copy, step + name, no_json_object(), resume);
  }
  files.contents(copy, step + "model.safetensors",
                 bad_safetensors(content(files.checkpoint() / "model.safetensors")), resume);
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{1000}}) {
    const fs::path run = files.run();
    fs::resize_file(run / (step + "optimizer.safetensors"), size);
    files.add(resume(run), "optimizer.safetensors");
  }
  for (const char* name :
       {"state.json", "config.json", "model.safetensors", "optimizer.safetensors", "metrics.jsonl"}) {
    for (const Obstacle& obstacle : obstacles_to_reading(files.folder())) {
      const std::string file = std::string_view(name) == "metrics.jsonl" ? name : step + name;
      if (file == "metrics.jsonl" && obstacle.named == "at most") continue;  // it is as long as the run
      const fs::path run = files.run();
      fs::remove(run / file);
      obstacle.put_at(run / file);
      files.add(resume(run), run.filename().string());
    }
  }
}

}  // namespace

std::vector<BadInput> bad_files(const fs::path& folder) {
  Files files(folder);
  add_configs(files);
  add_weights(files);
  add_data(files);
  add_rates(files);
  add_outputs(files);
  add_runs(files);
  return files.rows;
}

}  // namespace headroom
