#include "headroom/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <system_error>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/model/safetensors.h"
#include "model/json.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::array<std::string_view, 4> kFiles = {"config.json", "model.safetensors",
                                                    "optimizer.safetensors", "state.json"};
constexpr std::int64_t kMaxTextBytes = 16 * kMiB;
constexpr std::int64_t kFormat = 1;  // of state.json

// The step of a checkpoint's name, of at least eight digits; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

bool is_complete(const fs::path& folder) {
  return std::ranges::all_of(kFiles, [&](std::string_view file) {
    std::error_code ignored;
    return fs::is_regular_file(folder / file, ignored);
  });
}

// Names in a folder; none where there is no folder.
std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::input, "cannot read {}: {}", root.string(), error.message());
  }
  return names;
}

std::map<std::int64_t, fs::path> checkpoints(const fs::path& root) {
  std::map<std::int64_t, fs::path> found;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name); step && is_complete(root / name)) found[*step] = root / name;
  }
  return found;
}

void remove_leftovers(const fs::path& root) {
  for (const std::string& name : names_in(root)) {
    if (!name.starts_with('.') || !name.ends_with(".tmp")) continue;
    const std::string target = name.substr(1, name.size() - 5);
    if (step_of(target)) remove_leftover(root / target);
  }
}

void check_buffers(const TrainBuffers& buffers, const ParameterTable& table) {
  const auto check_one = [&](const TensorView& view, std::string_view what) {
    check(view.shape() == Shape{table.elements()} && view.is_dense() && view.dtype() == DType::f32,
          "{} is {} of shape {}; accepted: dense f32 of [{}]", what, name(view.dtype()), view.shape(),
          table.elements());
  };
  const DType weights = buffers.weights.dtype();
  check(weights == DType::f32 || weights == DType::bf16 || weights == DType::f16,
        "weights are {}; accepted: f32, bf16 or f16", name(weights));
  check_one(buffers.first_moment, "the first moment");
  check_one(buffers.second_moment, "the second moment");
  if (weights != DType::f32) {
    check_one(buffers.master, "master weights");
  } else {
    check(buffers.master.elements() == 0,
          "weights are f32 and have master weights of shape {}; accepted: none", buffers.master.shape());
  }
}

std::vector<NamedView> views_of(const ParameterTable& table, const TensorView& flat,
                                std::string_view prefix) {
  std::vector<NamedView> views;
  for (const Parameter& parameter : table.entries()) {
    views.push_back({fmt::format("{}{}", prefix, parameter.name), table.view(flat, parameter)});
  }
  return views;
}

// What optimizer.safetensors holds, in the order of the file.
std::vector<NamedView> optimizer_views(const ParameterTable& table, const TrainBuffers& buffers) {
  std::vector<NamedView> views;
  const auto append = [&](const TensorView& flat, std::string_view prefix) {
    std::ranges::move(views_of(table, flat, prefix), std::back_inserter(views));
  };
  if (buffers.weights.dtype() != DType::f32) append(buffers.master, "master.");
  append(buffers.first_moment, "first_moment.");
  append(buffers.second_moment, "second_moment.");
  return views;
}

std::string state_text(const TrainState& state) {
  const nlohmann::ordered_json json = {{"format", kFormat},      {"step", state.step},
                                       {"tokens", state.tokens}, {"samples", state.samples},
                                       {"seed", state.seed},     {"settings", state.settings}};
  return to_text(json, "state.json");
}

void check_state(const TrainState& state) {
  check(state.step >= 0 && state.tokens >= 0 && state.samples >= 0,
        "a state of step {}, {} tokens, {} samples is impossible; accepted: 0 and more", state.step,
        state.tokens, state.samples);
}

// The first setting in which two models differ, by its key in config.json.
void check_same_model(const ModelConfig& found, const ModelConfig& expected, const fs::path& path) {
  if (found == expected) return;
  const Json of_file = Json::parse(to_json(found));
  const Json of_run = Json::parse(to_json(expected));
  for (const auto& [key, value] : of_run.items()) {
    const Json other = of_file.value(key, Json());
    check(other == value, "{} is of another model: its {} is {}, this run's is {}", path.string(), key,
          other.dump(), value.dump());
  }
  fail(ErrorKind::input, "{} is of another model", path.string());
}

void check_same_dtype(const SafetensorsFile& file, const TensorView& weights, const fs::path& path) {
  for (const SafetensorsEntry& entry : file.entries()) {
    check(entry.dtype == weights.dtype(), "{}: tensor {} holds {}, this run's weights are {}", path.string(),
          in_quotes(entry.name), entry.type, name(weights.dtype()));
  }
}

}  // namespace

fs::path write_checkpoint(const fs::path& root, const ModelConfig& config, const TrainState& state,
                          const TrainBuffers& buffers) {
  const ParameterTable table(config);
  check_buffers(buffers, table);
  check_state(state);
  const std::string state_json = state_text(state);  // refuses what it cannot hold before anything is written
  std::error_code error;
  fs::create_directories(root, error);
  if (error) fail(ErrorKind::runtime, "cannot write {}: {}", root.string(), error.message());
  remove_leftovers(root);

  fs::path path = root / fmt::format("{}{:08}", kPrefix, state.step);
  FolderWriter writer(path);
  write_file(writer.folder() / "config.json", to_json(config, buffers.weights.dtype()));
  write_safetensors(writer.folder() / "model.safetensors", views_of(table, buffers.weights, ""));
  write_safetensors(writer.folder() / "optimizer.safetensors", optimizer_views(table, buffers));
  write_file(writer.folder() / "state.json", state_json);
  writer.commit();
  return path;
}

std::optional<fs::path> latest_checkpoint(const fs::path& root) {
  const auto found = checkpoints(root);
  if (found.empty()) return std::nullopt;
  return found.rbegin()->second;
}

TrainState read_train_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  const Json object = parse_json_object(read_small_file(path, kMaxTextBytes), path.string());
  const JsonReader json(object, path.string());
  if (json.integer("format") != kFormat) json.refuse("format", fmt::format("{}", kFormat));
  TrainState state{.step = json.integer("step"),
                   .tokens = json.integer("tokens"),
                   .samples = json.integer("samples"),
                   .seed = json.natural("seed"),
                   .settings = json.text("settings")};
  check_state(state);
  return state;
}

TrainState read_checkpoint(const fs::path& checkpoint, const ModelConfig& config,
                           const TrainBuffers& buffers) {
  const ParameterTable table(config);
  check_buffers(buffers, table);
  TrainState state = read_train_state(checkpoint);
  const fs::path config_path = checkpoint / "config.json";
  const std::string text = read_small_file(config_path, kMaxTextBytes);
  check_same_model(parse_model_config(text, config_path.string()), config, checkpoint);

  const fs::path model_path = checkpoint / "model.safetensors";
  const SafetensorsFile model(model_path);
  check_same_dtype(model, buffers.weights, model_path);
  for (const NamedView& tensor : views_of(table, buffers.weights, ""))
    model.read_into(tensor.name, tensor.view);
  const SafetensorsFile optimizer(checkpoint / "optimizer.safetensors");
  for (const NamedView& tensor : optimizer_views(table, buffers))
    optimizer.read_into(tensor.name, tensor.view);
  for (const TensorView& flat :
       {buffers.weights, buffers.master, buffers.first_moment, buffers.second_moment}) {
    if (flat.elements() > 0) table.clear_padding(flat);
  }
  return state;
}

void check_same_settings(const TrainState& state, std::string_view settings) {
  std::string_view saved = state.settings;
  const auto next_line = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
  };
  while (!saved.empty() || !settings.empty()) {
    const std::string_view before = next_line(saved);
    const std::string_view now = next_line(settings);
    check(before == now, "the checkpoint of step {} was made with {}, this run has {}", state.step,
          in_quotes(before), in_quotes(now));
  }
}

void remove_old_checkpoints(const fs::path& root, std::int64_t keep_last) {
  check(keep_last >= 1, "keeping {} checkpoints is impossible; accepted: 1 and more", keep_last);
  const auto found = checkpoints(root);
  std::int64_t excess = std::ssize(found) - keep_last;
  for (const auto& [step, path] : found) {
    if (excess-- > 0) remove_folder(path);
  }
}

}  // namespace headroom
