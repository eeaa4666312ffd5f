// A small training program with everything a large one has: parameters and optimizer state for the run,
// activations and workspaces for a phase, gradient accumulation, the next batch copied on a second stream
// while this one is computed, and saving through host staging. It learns a linear map through two layers with
// a ReLU between them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "headroom/memory.h"

namespace headroom {

struct MemoryProgramSizes {
  std::int64_t batch = 64;
  std::int64_t input = 64;
  std::int64_t hidden = 256;
  std::int64_t output = 16;
  std::int64_t accumulation = 4;  // micro-steps per update
};

class MemoryProgram {
 public:
  // Runs the load phase.
  MemoryProgram(Context& context, const MemoryProgramSizes& sizes);

  // `accumulation` micro-steps and an update; the mean loss of the micro-steps (0 in a rehearsal).
  double step();
  // Writes the parameters to a temporary file beside `path`, syncs it and renames it. A rehearsal writes
  // nothing.
  void save(const std::filesystem::path& path);

  // The parameters' bits, for comparing two runs; empty in a rehearsal.
  [[nodiscard]] std::vector<float> parameters();

 private:
  struct Layer {
    Tensor weight;    // [outputs, inputs]
    Tensor gradient;  // [outputs, inputs]
    Tensor momentum;  // [outputs, inputs]
  };

  Layer make_layer(std::int64_t outputs, std::int64_t inputs, std::uint64_t seed);
  void micro_step();
  void update();
  // The save phase: copies the parameters to the host and calls read() with one after the other.
  void read_parameters(const std::function<void(std::span<const float>)>& read);
  // Starts the copy of the next batch on the copy stream.
  Ticket fetch_batch();

  Context& context_;
  MemoryProgramSizes sizes_;
  std::uint64_t batches_ = 0;  // made so far
  std::array<Layer, 2> layers_;
  Tensor teacher_;   // [output, input]
  Tensor arriving_;  // [batch, input]: the next batch, copied here while the current one is computed on
  Tensor staging_;   // [batch, input] on the host
  Tensor loss_;      // [1] on the host
};

}  // namespace headroom
