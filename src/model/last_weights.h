// What follows the layers: the final norm and the projection to the vocabulary. Where ranks divide the
// vocabulary, the projection is the rows of the rank's own words: of a divided buffer they are the rank's
// slice, so that they are never gathered and their gradients never sent.
#pragma once

#include <optional>

#include "headroom/model/decoder.h"
#include "model/unit_weights.h"

namespace headroom {

class LastWeights {
 public:
  LastWeights(const FlatBuffer& weights, const Decoder& decoder);

  [[nodiscard]] const TensorView& final_norm() const { return final_norm_; }
  [[nodiscard]] const TensorView& output() const { return output_; }

 private:
  UnitWeights last_;
  std::optional<UnitWeights> tied_;
  TensorView final_norm_;
  TensorView output_;
};

class LastGradients {
 public:
  LastGradients(const FlatBuffer& gradients, const Decoder& decoder);

  [[nodiscard]] const TensorView& final_norm() const { return final_norm_; }
  [[nodiscard]] const TensorView& output() const { return output_; }
  // As UnitGradients::add.
  void add() const;

 private:
  UnitGradients last_;
  std::optional<UnitGradients> tied_;
  TensorView final_norm_;
  TensorView output_;
};

// Units of the flat buffers, as Shards cuts them where weights are divided. Without that no unit is read.
inline constexpr std::size_t kEmbeddingUnit = 0;
[[nodiscard]] inline std::size_t unit_of_layer(std::int64_t layer) {
  return static_cast<std::size_t>(layer) + 1;
}

}  // namespace headroom
