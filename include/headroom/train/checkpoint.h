// A checkpoint is a folder ROOT/step-00000120 with config.json and model.safetensors (what transformers'
// from_pretrained loads), optimizer.safetensors and state.json. It appears whole or not at all, and holds
// every bit that the next step depends on. Tensors stream between the given views and the files; nothing is
// copied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/core/tensor_view.h"
#include "headroom/model/config.h"
#include "headroom/model/parameters.h"

namespace headroom {

struct TrainState {
  std::int64_t step = 0;     // updates done
  std::int64_t tokens = 0;   // seen
  std::int64_t samples = 0;  // seen
  std::uint64_t seed = 0;
  std::string settings;  // of the run, one a line; resume compares them

  bool operator==(const TrainState&) const = default;
};

// Flat buffers of the model's ParameterTable, [elements()] each, in host memory.
struct TrainBuffers {
  TensorView weights;        // f32, bf16 or f16
  TensorView master;         // f32 where weights are 16-bit; empty where they are f32
  TensorView first_moment;   // f32
  TensorView second_moment;  // f32
};

// Writes ROOT/step-<state.step>, replacing one of that name, and makes ROOT where it is missing. What killed
// writers left in ROOT is removed. Returns the folder.
std::filesystem::path write_checkpoint(const std::filesystem::path& root, const ModelConfig& config,
                                       const TrainState& state, const TrainBuffers& buffers);

// The checkpoint of the highest step; nothing where there is none, or no ROOT.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root);

[[nodiscard]] TrainState read_train_state(const std::filesystem::path& checkpoint);

// Fills the buffers. Throws where the checkpoint is of another model, its weights are of another dtype, or a
// tensor is missing or has another shape.
[[nodiscard]] TrainState read_checkpoint(const std::filesystem::path& checkpoint, const ModelConfig& config,
                                         const TrainBuffers& buffers);

// Throws with the first line in which a run's settings differ from those of the checkpoint.
void check_same_settings(const TrainState& state, std::string_view settings);

// Removes all but the last checkpoints of ROOT; at least one is kept.
void remove_old_checkpoints(const std::filesystem::path& root, std::int64_t keep_last);

}  // namespace headroom
