// What is asked of a plan, from the names that people type to the question that answer_plan takes. Nothing
// here depends on this machine: jobs/plan.h adds its CPU, its rates and the folders of models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/plan/answer.h"

namespace headroom {

// Parts of the strategy, as people pin them.
struct PinOptions {
  std::optional<std::string> layers{};  // "keep:8,attention:4,recompute:20,offload:4,every:2"
  std::optional<std::int64_t> loss_chunk_tokens{};
  std::optional<std::int64_t> mlp_tile_tokens{};
  std::optional<std::int64_t> accumulation{};
  std::optional<std::string> optimizer_state{};  // "device" or "host"
  std::int64_t ranks = 1;
  std::optional<std::int64_t> ring{};       // ranks that divide every sequence
  std::optional<std::string> shard{};       // what of the state they divide too; see Sharding
  std::optional<std::string> loss_ranks{};  // what of the loss: "tokens" or "vocabulary"
};
// Throws where the counts of layers are not those of a model of so many, where the ring does not divide the
// ranks, and where one rank is to divide its state or the vocabulary.
[[nodiscard]] StrategyPins strategy_pins(const PinOptions& options, std::int64_t layers);

struct PlanOptions {
  std::string model;                                // a built-in name, or a Hugging Face folder
  std::int64_t context = 0;                         // tokens of a sequence
  std::int64_t batch = 1;                           // sequences of an update
  std::string device = "cpu";                       // this machine's, or a name of the catalogue
  std::optional<std::int64_t> budget_bytes{};       // without it: what the device has
  std::optional<std::int64_t> host_budget_bytes{};  // for what is offloaded; without it nothing is
  std::string attention = "causal";                 // as parse_mask() reads it
  std::optional<std::string> dtype{};               // without it: what is fast on the device
  std::string state = "f32";                        // of weights, gradients, moments: f32, bf16 or 8bit
  OptimizerKind optimizer = OptimizerKind::adamw;
  PinOptions pins{};
  bool fewest_ranks = false;                // in place of the pins' ranks: the smallest number that fits
  std::optional<std::string> link{};        // between ranks, as parse_link_rate() reads it
  std::optional<double> latency_seconds{};  // of a message on that link
  bool compare = false;
};

// A device of the catalogue, by its name. Without a budget, that is the device's memory less what its driver
// takes.
struct PlannedDevice {
  DeviceDescription description;
  std::int64_t budget_bytes = 0;
};
[[nodiscard]] PlannedDevice find_catalogue_device(std::string_view name,
                                                  std::optional<std::int64_t> budget_bytes);

// The dtype that is fast on the device, or f32 where that is f16, which nothing is trained in.
[[nodiscard]] DType default_training_dtype(const DeviceDescription& device);
// Throws where nothing is trained in the dtype on the device.
void check_training_dtype(const DeviceDescription& device, DType dtype);

// Makes the question for this model and this device. The options' names of both are not looked up: the answer
// repeats them. Throws where attention is not causal.
[[nodiscard]] PlanQuestion plan_question(const PlanOptions& options, const FoundModel& model,
                                         const PlannedDevice& device);
// Returns the catalogue's rates for the question's device.
[[nodiscard]] PlanCosts catalogue_costs(const PlanQuestion& question);

}  // namespace headroom
