// The one table of a layer: the weights that it reads and the activations that it makes, each with its name,
// its shape, and the layers that have it. Loading, the flat buffers, the step and its memory all follow from
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "headroom/memory/ledger.h"
#include "headroom/model/decoder.h"

namespace headroom {

struct WeightRow {
  Weight weight;
  std::string_view name;  // Hugging Face's, between "model.layers.N." and ".weight"
  Shape (*shape)(const ModelConfig&);
  bool decays;
  bool (*exists)(const LayerSpec&);
};

// In the order of Weight.
[[nodiscard]] std::span<const WeightRow> layer_weights();

enum class Activation : std::uint8_t {
  input,
  norm1,
  norm1_rstd,
  query_raw,
  query_rstd,
  key_raw,
  key_rstd,
  query,
  key,
  value,
  output,
  lse,
  middle,
  norm2,
  norm2_rstd,
  gate_up,
};
inline constexpr std::size_t kActivations = 16;

// What ways of keeping tell apart.
enum class ActivationKind : std::uint8_t {
  attention,   // the input, and what attention alone can make
  projection,  // read by the backward of the projections, not by attention's
  tile,        // a tile of tokens at a time, inside the MLP, unless everything is kept
  other,
};

struct ActivationRow {
  Activation activation;
  std::string_view name;
  Category category;
  bool statistics;  // f32; otherwise in the dtype that the model computes in
  Shape (*shape)(const ModelConfig&, const RankSizes&);
  bool (*exists)(const LayerSpec&);
  ActivationKind kind;
};

// In the order of Activation, which is the order in which a layer makes them.
[[nodiscard]] const ActivationRow& activation_row(Activation activation);

}  // namespace headroom
