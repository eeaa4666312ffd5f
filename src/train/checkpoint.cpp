#include "headroom/train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string_view>
#include <system_error>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/core/checksum.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/model/safetensors.h"
#include "headroom/ops/adamw.h"
#include "model/json.h"
#include "train/state_gather.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kModel = "model.safetensors";
constexpr std::string_view kOptimizer = "optimizer.safetensors";
constexpr std::string_view kState = "state.json";
constexpr std::array kFiles = {kConfig, kModel, kOptimizer, kState};
constexpr std::int64_t kMaxTextBytes = 16 * kMiB;
constexpr std::uint64_t kFormat = 2;  // of state.json

std::string folder_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

// The step of a checkpoint's name; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || name != folder_name(step)) return std::nullopt;
  return step;
}

// The first file that a checkpoint lacks; empty where it is complete.
std::string_view missing_file(const fs::path& folder) {
  const auto missing = std::ranges::find_if_not(kFiles, [&](std::string_view file) {
    std::error_code ignored;
    return fs::is_regular_file(folder / file, ignored);
  });
  return missing == kFiles.end() ? std::string_view() : *missing;
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

// Everything that has the name of a checkpoint.
std::map<std::int64_t, fs::path> named_checkpoints(const fs::path& root) {
  std::map<std::int64_t, fs::path> found;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name)) found[*step] = root / name;
  }
  return found;
}

std::map<std::int64_t, fs::path> complete_checkpoints(const fs::path& root) {
  auto found = named_checkpoints(root);
  std::erase_if(found, [](const auto& entry) { return !missing_file(entry.second).empty(); });
  return found;
}

// The message of the error that a call ends with; nothing where it ends well.
template <class Call>
std::optional<std::string> reason_against(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

// What cannot be removed stays: it is in the way of a checkpoint of its own step alone.
void remove_leftovers(const fs::path& root) {
  for (const std::string& name : names_in(root)) {
    if (!name.starts_with('.') || !name.ends_with(".tmp")) continue;
    const std::string target = name.substr(1, name.size() - 5);
    if (step_of(target)) static_cast<void>(reason_against([&] { remove_leftover(root / target); }));
  }
}

StatePrecision state_of(const TrainBuffers& buffers) {
  switch (buffers.first_moment.view().dtype()) {
    case DType::bf16: return StatePrecision::bf16;
    case DType::u8: return StatePrecision::eight_bit;
    default: return StatePrecision::f32;
  }
}

// Of a tensor that has these slices of a flat buffer; without any it is whole.
std::int64_t elements_of(std::span<const ShardSlice> slices, const ParameterTable& table) {
  if (slices.empty()) return table.elements();
  return slices.back().own_begin + slices.back().elements;
}

void check_buffers(const TrainBuffers& buffers, const ParameterTable& table) {
  const auto check_one = [&](const TensorView& view, std::string_view what, DType dtype,
                             std::int64_t elements) {
    check(view.shape() == Shape{elements} && view.is_dense() && view.dtype() == dtype,
          "{} is {} of shape {}; accepted: dense {} of [{}]", what, name(view.dtype()), view.shape(),
          name(dtype), elements);
  };
  const DType weights = buffers.weights.view().dtype();
  check(weights == DType::f32 || weights == DType::bf16 || weights == DType::f16,
        "weights are {}; accepted: f32, bf16 or f16", name(weights));
  const StatePrecision state = state_of(buffers);
  check_state(state, weights);
  const std::int64_t elements = elements_of(buffers.state_slices, table);
  check_one(buffers.first_moment, "the first moment", moment_dtype(state), elements);
  check_one(buffers.second_moment, "the second moment", moment_dtype(state), elements);
  if (has_master(state, weights)) {
    check_one(buffers.master, "master weights", DType::f32, elements);
  } else {
    const TensorView& master = buffers.master;
    check(master.elements() == 0, "weights are {} and have master weights of shape {}; accepted: none",
          name(weights), master.shape());
  }
  if (state == StatePrecision::eight_bit) {
    const std::int64_t blocks = elements / kMomentBlock;
    check_one(buffers.first_exponents, "the first moment's exponents", DType::u8, blocks);
    check_one(buffers.second_exponents, "the second moment's exponents", DType::u8, blocks);
  }
}

// A flat buffer as a file has it: every parameter, its name behind the prefix.
struct SavedFlat {
  std::string_view prefix;
  DType dtype;
  const Tensor* tensor;                  // not looked at where only names and shapes are of interest
  bool exponents_only = false;           // one for every block of a parameter's moments
  std::span<const ShardSlice> slices{};  // that the tensor has; empty: it is whole

  [[nodiscard]] std::int64_t shared() const { return exponents_only ? kMomentBlock : 1; }
  [[nodiscard]] Shape shape(const Parameter& parameter) const {
    if (!exponents_only) return parameter.shape;
    return {divide_up(parameter.shape.elements(), kMomentBlock)};
  }
  [[nodiscard]] std::int64_t begin(const Parameter& parameter) const { return parameter.offset / shared(); }
  // body(first element of the parameter, where it is in the tensor) for each part of the parameter that the
  // tensor has.
  template <class Body>
  void for_each_part(const Parameter& parameter, const Body& body) const {
    const std::int64_t elements = shape(parameter).elements();
    if (slices.empty()) return body(0, TensorPart{*tensor, begin(parameter), elements});
    for_each_overlap(
        slices, parameter.offset, parameter.offset + elements * shared(),
        [&](std::int64_t flat, std::int64_t own, std::int64_t count) {
          body((flat - parameter.offset) / shared(), TensorPart{*tensor, own / shared(), count / shared()});
        });
  }
};

// What model.safetensors holds, in the order of the file.
std::vector<SavedFlat> model_flats(DType weights, const TrainBuffers* buffers) {
  if (buffers == nullptr) return {{"", weights, nullptr}};
  return {{"", weights, &buffers->weights, false, buffers->weight_slices}};
}

// What optimizer.safetensors holds, in the order of the file.
std::vector<SavedFlat> optimizer_flats(DType weights, StatePrecision state, const TrainBuffers* buffers) {
  const TrainBuffers none{kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  const TrainBuffers& given = buffers == nullptr ? none : *buffers;
  std::vector<SavedFlat> flats;
  const auto add = [&](std::string_view prefix, DType dtype, const Tensor& tensor, bool exponents_only) {
    flats.push_back({prefix, dtype, &tensor, exponents_only, given.state_slices});
  };
  if (has_master(state, weights)) add("master.", DType::f32, given.master, false);
  add("first_moment.", moment_dtype(state), given.first_moment, false);
  add("second_moment.", moment_dtype(state), given.second_moment, false);
  if (state == StatePrecision::eight_bit) {
    add("first_exponents.", DType::u8, given.first_exponents, true);
    add("second_exponents.", DType::u8, given.second_exponents, true);
  }
  return flats;
}

std::vector<NamedShape> shapes_of(const ParameterTable& table, std::span<const SavedFlat> flats) {
  std::vector<NamedShape> shapes;
  for (const SavedFlat& flat : flats) {
    for (const Parameter& parameter : table.entries()) {
      shapes.push_back({fmt::format("{}{}", flat.prefix, parameter.name), flat.dtype, flat.shape(parameter)});
    }
  }
  return shapes;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hexadecimal(std::uint32_t checksum) {
  return fmt::format("{:08x}", checksum);
}

// Of an object of state.json, whatever the order of its keys and the spaces between them.
std::string checksum_of(const Json& object) {
  return hexadecimal(crc32c(bytes_of(object.dump())));
}

nlohmann::ordered_json to_json(const SafetensorsChecksums& checksums, std::span<const NamedShape> tensors) {
  nlohmann::ordered_json json = {{"header", hexadecimal(checksums.header)},
                                 {"tensors", nlohmann::ordered_json::object()}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    json["tensors"][tensors[i].name] = hexadecimal(checksums.tensors[i]);
  }
  return json;
}

// state.json; `files` are the checksums of the others.
std::string state_text(const TrainState& state, const nlohmann::ordered_json& files) {
  nlohmann::ordered_json json = {{"format", kFormat},          {"step", state.step},
                                 {"tokens", state.tokens},     {"samples", state.samples},
                                 {"settings", state.settings}, {"checksums", files}};
  const std::string text = to_text(json, kState);  // refuses what is no UTF-8
  json["checksum"] = checksum_of(Json::parse(text));
  return to_text(json, kState);
}

void check_counts(const TrainState& state) {
  check(state.step >= 0 && state.tokens >= 0 && state.samples >= 0,
        "a state of step {}, {} tokens, {} samples is impossible; accepted: 0 and more", state.step,
        state.tokens, state.samples);
}

// state.json as it was read: the state, and the checksums of the other files.
struct StateFile {
  fs::path path;
  TrainState state;
  Json checksums;

  // Throws where the checksum is not that of what was saved. `what` names it in the message.
  void verify(std::uint32_t checksum, const Json* saved, std::string_view what) const {
    check(saved != nullptr && saved->is_string(), "{}: the checksum of {} is missing", path.string(), what);
    const std::string found = hexadecimal(checksum);
    check(found == saved->get_ref<const std::string&>(),
          "{} is damaged: its checksum is {}, it was saved with {}", what, found,
          saved->get_ref<const std::string&>());
  }
  // The saved checksum below keys; null where there is none.
  [[nodiscard]] const Json* saved(std::initializer_list<std::string_view> keys) const {
    const Json* value = &checksums;
    for (const std::string_view key : keys) {
      if (!value->is_object()) return nullptr;
      const auto found = value->find(key);
      if (found == value->end()) return nullptr;
      value = &*found;
    }
    return value;
  }
};

std::map<std::string, std::string> parse_settings(const JsonReader& json) {
  const Json* object = json.find("settings");
  if (object == nullptr || !object->is_object()) json.refuse("settings", "an object of texts");
  std::map<std::string, std::string> settings;
  for (const auto& [name, value] : object->items()) {
    check(value.is_string(), "{}: setting {} is {}; accepted: a text", json.source(), in_quotes(name),
          shown(value));
    settings[name] = value.get<std::string>();
  }
  return settings;
}

StateFile read_state_file(const fs::path& checkpoint) {
  StateFile file{.path = checkpoint / kState, .state = {}, .checksums = {}};
  Json object = parse_json_object(read_small_file(file.path, kMaxTextBytes), file.path.string());
  const JsonReader json(object, file.path.string());
  check(json.natural("format") != 1,
        "{}: format 1 is of an earlier version and cannot be resumed; give the folder as the model of a new "
        "run",
        file.path.string());
  if (json.natural("format") != kFormat) json.refuse("format", fmt::format("{}", kFormat));
  const std::string saved = json.text("checksum");
  object.erase("checksum");
  check(checksum_of(object) == saved, "{} is damaged: its checksum is {}, it was saved with {}",
        file.path.string(), checksum_of(object), in_quotes(saved));
  file.state = {.step = json.integer("step"),
                .tokens = json.integer("tokens"),
                .samples = json.integer("samples"),
                .settings = parse_settings(json)};
  check_counts(file.state);
  const auto named = step_of(checkpoint.filename().string());
  check(!named || *named == file.state.step, "{} is of step {}, its folder is named after step {}",
        file.path.string(), file.state.step, named.value_or(0));
  if (const Json* checksums = json.find("checksums")) file.checksums = *checksums;
  return file;
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

// One of the two files of tensors, opened with everything checked but the data.
class TensorFile {
 public:
  TensorFile(const StateFile& state, std::string_view name, const ParameterTable& table,
             std::vector<SavedFlat> flats)
      : state_(state),
        name_(name),
        path_(state.path.parent_path() / name),
        file_(path_),
        table_(table),
        flats_(std::move(flats)) {
    state.verify(crc32c(file_.header_bytes()), state.saved({name, "header"}),
                 fmt::format("{}: the header", path_.string()));
    for (const auto& [tensor, dtype, shape] : shapes_of(table, flats_)) {
      const SafetensorsEntry* entry = file_.find(tensor);
      check(entry != nullptr, "{}: tensor {} is missing; expected in shape {}", path_.string(),
            in_quotes(tensor), shape);
      check(entry->dtype == dtype, "{}: tensor {} holds {}, this run's is {}", path_.string(),
            in_quotes(tensor), entry->type, headroom::name(dtype));
      check(entry->shape == shape, "{}: tensor {} has shape {}, expected {}", path_.string(),
            in_quotes(tensor), entry->shape, shape);
    }
  }

  // Fills the tensors. What of them other ranks have is read for its checksum alone.
  void read(Staging& staging) const {
    for (const SavedFlat& flat : flats_) {
      for (const Parameter& parameter : table_.entries()) {
        const std::string tensor = fmt::format("{}{}", flat.prefix, parameter.name);
        const SafetensorsEntry& entry = file_.at(tensor, flat.shape(parameter));
        std::uint32_t checksum = 0;
        std::int64_t done = 0;
        const auto pass_over = [&](std::int64_t end) { pass(entry, flat.dtype, done, end, checksum); };
        flat.for_each_part(parameter, [&](std::int64_t begin, const TensorPart& part) {
          pass_over(begin);
          staging.upload(part, [&](std::span<std::byte> piece, std::int64_t first) {
            file_.read(entry, flat.dtype, begin + first, piece);
            checksum = crc32c(piece, checksum);
          });
          done = begin + part.elements;
        });
        pass_over(flat.shape(parameter).elements());
        state_.verify(checksum, state_.saved({name_, "tensors", tensor}),
                      fmt::format("{}: tensor {}", path_.string(), in_quotes(tensor)));
      }
      if (!flat.exponents_only && flat.slices.empty()) table_.clear_padding(*flat.tensor, staging);
    }
  }

 private:
  // Adds elements begin to end - 1 to a checksum.
  void pass(const SafetensorsEntry& entry, DType dtype, std::int64_t begin, std::int64_t end,
            std::uint32_t& checksum) const {
    constexpr std::int64_t kPieceElements = 1 << 16;
    std::vector<std::byte> memory(
        static_cast<std::size_t>(std::min(end - begin, kPieceElements) * size_bytes(dtype)));
    while (begin < end) {
      const std::int64_t elements = std::min(end - begin, kPieceElements);
      const std::span piece = std::span(memory).first(static_cast<std::size_t>(elements * size_bytes(dtype)));
      file_.read(entry, dtype, begin, piece);
      checksum = crc32c(piece, checksum);
      begin += elements;
    }
  }

  const StateFile& state_;
  std::string_view name_;
  fs::path path_;
  SafetensorsFile file_;
  const ParameterTable& table_;
  std::vector<SavedFlat> flats_;
};

// The state of a checkpoint whose model is that of this run.
StateFile state_of_model(const fs::path& checkpoint, const ModelConfig& config) {
  StateFile state = read_state_file(checkpoint);
  const fs::path path = checkpoint / kConfig;
  const std::string text = read_small_file(path, kMaxTextBytes);
  state.verify(crc32c(bytes_of(text)), state.saved({kConfig}), path.string());
  check_same_model(parse_model_config(text, path.string()), config, checkpoint);
  return state;
}

// A checkpoint with everything checked but the tensors' data. Without buffers it cannot be read.
struct OpenCheckpoint {
  OpenCheckpoint(const fs::path& folder, const ModelConfig& config, const ParameterTable& table,
                 DType weights, StatePrecision precision, const TrainBuffers* buffers)
      : state(state_of_model(folder, config)),
        model(state, kModel, table, model_flats(weights, buffers)),
        optimizer(state, kOptimizer, table, optimizer_flats(weights, precision, buffers)) {}

  StateFile state;
  TensorFile model;
  TensorFile optimizer;
};

// Of moments: the largest stands for infinity, as in f32.
void check_exponents(std::span<const std::byte> exponents, std::string_view prefix,
                     const Parameter& parameter) {
  if (std::ranges::find(exponents, std::byte{255}) == exponents.end()) return;
  fail(ErrorKind::runtime, "tensor {} is not finite, so it is not saved",
       in_quotes(fmt::format("{}{}", prefix, parameter.name)));
}

}  // namespace

void validate(const TrainState& state) {
  check_counts(state);
  static_cast<void>(state_text(state, {}));
}

fs::path write_checkpoint(const fs::path& root, const ModelConfig& config, const TrainState& state,
                          const TrainBuffers& buffers, Staging& staging, const ModelFiles& files,
                          StateGather* gather) {
  const ParameterTable table(config);
  const DType weights = buffers.weights.view().dtype();
  check_buffers(buffers, table);
  check((buffers.weight_slices.empty() && buffers.state_slices.empty()) || gather != nullptr,
        "ranks divide the state, and nothing gathers it for the checkpoint");
  validate(state);  // before anything is written
  create_folders(root, ErrorKind::runtime);
  remove_leftovers(root);

  fs::path path = root / folder_name(state.step);
  FolderWriter writer(path);
  nlohmann::ordered_json checksums;
  const std::string config_json = files.complete_config(headroom::to_json(config, weights));
  write_file(writer.folder() / kConfig, config_json);
  checksums[std::string(kConfig)] = hexadecimal(crc32c(bytes_of(config_json)));
  const auto write_tensors = [&](std::string_view name, const std::vector<SavedFlat>& flats) {
    const std::vector<NamedShape> shapes = shapes_of(table, flats);
    SafetensorsWriter file(writer.folder() / name, shapes, AllowedValues::finite);
    for (const SavedFlat& flat : flats) {
      for (const Parameter& parameter : table.entries()) {
        const auto write = [&](std::span<const std::byte> piece, std::int64_t) {
          if (flat.exponents_only) check_exponents(piece, flat.prefix, parameter);
          file.write(piece);
        };
        const std::int64_t begin = flat.begin(parameter);
        const std::int64_t elements = flat.shape(parameter).elements();
        if (flat.slices.empty()) {
          staging.download({*flat.tensor, begin, elements}, write);
        } else {
          gather->read(*flat.tensor, begin, elements, staging, write);
        }
      }
    }
    checksums[std::string(name)] = to_json(file.commit(), shapes);
  };
  write_tensors(kModel, model_flats(weights, &buffers));
  write_tensors(kOptimizer, optimizer_flats(weights, state_of(buffers), &buffers));
  files.write_to(writer.folder());
  write_file(writer.folder() / kState, state_text(state, checksums));
  writer.commit();
  return path;
}

std::optional<fs::path> latest_checkpoint(const fs::path& root) {
  const auto found = complete_checkpoints(root);
  if (found.empty()) return std::nullopt;
  return found.rbegin()->second;
}

std::vector<IncompleteCheckpoint> incomplete_checkpoints(const fs::path& root) {
  std::vector<IncompleteCheckpoint> found;
  for (const auto& [step, path] : named_checkpoints(root)) {
    const std::string_view missing = missing_file(path);
    if (!missing.empty()) found.push_back({.path = path, .missing = std::string(missing)});
  }
  return found;
}

TrainState read_train_state(const fs::path& checkpoint) {
  return read_state_file(checkpoint).state;
}

TrainState check_checkpoint(const fs::path& checkpoint, const ModelConfig& config, DType weights,
                            StatePrecision state) {
  const ParameterTable table(config);
  return OpenCheckpoint(checkpoint, config, table, weights, state, nullptr).state.state;
}

TrainState read_checkpoint(const fs::path& checkpoint, const ModelConfig& config, const TrainBuffers& buffers,
                           Staging& staging) {
  const ParameterTable table(config);
  check_buffers(buffers, table);
  const OpenCheckpoint files(checkpoint, config, table, buffers.weights.view().dtype(), state_of(buffers),
                             &buffers);
  files.model.read(staging);
  files.optimizer.read(staging);
  return files.state.state;
}

std::string compare_settings(const TrainState& state, std::span<const Setting> settings) {
  std::vector<std::string> exact;
  std::vector<std::string> last_bits;
  std::map<std::string, std::string> unknown = state.settings;
  for (const Setting& setting : settings) {
    unknown.erase(setting.name);
    const auto found = state.settings.find(setting.name);
    const std::string_view saved = found == state.settings.end() ? kNoSetting : found->second;
    if (setting.kind == SettingKind::free || saved == setting.value) continue;
    auto& differences = setting.kind == SettingKind::exact ? exact : last_bits;
    differences.push_back(fmt::format("{} {} (this run: {})", setting.name, saved, setting.value));
  }
  for (const auto& [name, value] : unknown) {
    exact.push_back(fmt::format("{} {} (this run: {})", name, value, kNoSetting));
  }
  check(exact.empty(), "the checkpoint of step {} was made with {}", state.step, fmt::join(exact, ", "));
  if (last_bits.empty()) return {};
  return fmt::format("the checkpoint of step {} was made with {}: the last bits of results may differ",
                     state.step, fmt::join(last_bits, ", "));
}

std::vector<std::string> remove_old_checkpoints(const fs::path& root, std::int64_t keep_last) {
  check(keep_last >= 1, "keeping {} checkpoints is impossible; accepted: 1 and more", keep_last);
  std::vector<std::string> reasons;
  const auto attempt = [&](const auto& call) {
    if (auto reason = reason_against(call)) reasons.push_back(*std::move(reason));
  };
  attempt([&] {
    const auto found = complete_checkpoints(root);
    std::int64_t excess = std::ssize(found) - keep_last;
    for (const auto& [step, path] : found) {
      if (excess-- > 0) attempt([&] { remove_folder(path); });
    }
  });
  return reasons;
}

void remove_checkpoints(const fs::path& root) {
  for (const auto& [step, path] : named_checkpoints(root)) remove_folder(path);
}

}  // namespace headroom
