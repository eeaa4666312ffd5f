// A checkpoint is a folder ROOT/step-00000120 with config.json, model.safetensors and the tokenizer's files
// (what transformers' from_pretrained loads), optimizer.safetensors and state.json. It appears whole or not
// at all, and holds every bit that the next step depends on, with checksums. Tensors stream between their
// memory and the files through a Staging, wherever they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/memory/staging.h"
#include "headroom/model/config.h"
#include "headroom/model/parameters.h"
#include "headroom/model/shards.h"
#include "headroom/model/strategy.h"
#include "headroom/train/model_files.h"

namespace headroom {

struct TrainState {
  std::int64_t step = 0;                        // updates done
  std::int64_t tokens = 0;                      // seen
  std::int64_t samples = 0;                     // seen
  std::map<std::string, std::string> settings;  // of the run, by name

  bool operator==(const TrainState&) const = default;
};

// Throws where state.json could not hold it.
void validate(const TrainState& state);

inline const Tensor kNoTensor;
class StateGather;

// Flat tensors of the model's ParameterTable, [elements()] each, in any space of one context. The precision
// of the state is that of the moments. Where ranks divide them, a rank's tensors have the elements of its
// slices.
struct TrainBuffers {
  const Tensor& weights;        // f32, bf16 or f16
  const Tensor& master;         // f32 where the state is and the weights are 16-bit; otherwise empty
  const Tensor& first_moment;   // f32, bf16 or u8
  const Tensor& second_moment;  // as the first
  const Tensor& first_exponents =
      kNoTensor;  // [elements() / kMomentBlock] u8 where moments are; otherwise empty
  const Tensor& second_exponents = kNoTensor;
  std::span<const ShardSlice> weight_slices{};  // empty: the weights are whole
  std::span<const ShardSlice> state_slices{};   // of the others; empty: they are whole
};

// Writes ROOT/step-<state.step>, replacing one of that name, and makes ROOT where it is missing. What killed
// writers left in ROOT is removed as far as that is possible. A tensor that is not finite is a runtime error
// that names it, and no checkpoint appears. Returns the folder. Where ranks divide the state, rank 0 writes
// what `gather` brings to it.
std::filesystem::path write_checkpoint(const std::filesystem::path& root, const ModelConfig& config,
                                       const TrainState& state, const TrainBuffers& buffers, Staging& staging,
                                       const ModelFiles& files = {}, StateGather* gather = nullptr);

// The checkpoint of the highest step; nothing where there is none, or no ROOT.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root);

// Whatever has the name of a checkpoint in ROOT and lacks a file, in the order of the steps.
struct IncompleteCheckpoint {
  std::filesystem::path path;
  std::string missing;  // the first file that is not there
};
[[nodiscard]] std::vector<IncompleteCheckpoint> incomplete_checkpoints(const std::filesystem::path& root);

// The state alone. Throws where state.json was damaged, or tells of another step than the folder's name.
[[nodiscard]] TrainState read_train_state(const std::filesystem::path& checkpoint);

// Checks everything but the tensors' data, without memory for them. Throws where state.json or a header is
// damaged, the checkpoint is of another model, its weights or its state are of another dtype, or a tensor is
// missing or has another shape.
TrainState check_checkpoint(const std::filesystem::path& checkpoint, const ModelConfig& config, DType weights,
                            StatePrecision state = StatePrecision::f32);

// Fills the buffers; of tensors that ranks divide, this rank's part. Throws as check_checkpoint does, and
// where a tensor does not have the checksum that it was saved with.
[[nodiscard]] TrainState read_checkpoint(const std::filesystem::path& checkpoint, const ModelConfig& config,
                                         const TrainBuffers& buffers, Staging& staging);

// What a run depends on, to be compared when it is resumed.
enum class SettingKind : std::uint8_t {
  exact,      // data or mathematics: with another value it is another run
  last_bits,  // with another value the last bits of results differ
  free        // kept for people
};
inline constexpr std::string_view kNoSetting = "none";  // the value of one that a run does not have
struct Setting {
  std::string name;
  std::string value;
  SettingKind kind = SettingKind::exact;
};

// Throws with every exact setting in which a run differs from a checkpoint's. Returns one line for people
// about those that change last bits only; empty where there are none.
[[nodiscard]] std::string compare_settings(const TrainState& state, std::span<const Setting> settings);

// Removes all but the last checkpoints of ROOT; at least one is kept. Incomplete ones stay, and so do those
// that cannot be removed. Returns a line for each of the latter, for people: the run goes on without it.
std::vector<std::string> remove_old_checkpoints(const std::filesystem::path& root, std::int64_t keep_last);

// Removes every checkpoint of ROOT, also incomplete ones.
void remove_checkpoints(const std::filesystem::path& root);

}  // namespace headroom
