// The activations of a layer while they exist, and which ways of keeping keep them for backward. What is not
// kept is made again there, by the same kernels, so every way gives the same bits.
#pragma once

#include <array>

#include "headroom/memory/context.h"
#include "model/layer_table.h"

namespace headroom {

// What a layer leaves for backward.
enum class Keeping : std::uint8_t {
  all,
  attention,  // its input, and what attention alone can make
  input,
  nothing,                      // its input is made again from an earlier layer's
  rebuild,                      // backward's own: all but what the MLP makes tile by tile
  rebuild_without_projections,  // the same without what only the backward of the projections reads
};

[[nodiscard]] bool keeps(Keeping keeping, Activation activation);

// The activations of one layer that exist.
class LayerActivations {
 public:
  [[nodiscard]] bool has(Activation activation) const { return live_[index(activation)]; }
  [[nodiscard]] const Tensor& operator[](Activation activation) const { return tensors_[index(activation)]; }

  // Allocates it where it does not exist.
  const Tensor& make(Context& context, Activation activation, const ModelConfig& config,
                     const RankSizes& sizes, DType dtype);
  void put(Activation activation, Tensor tensor);
  [[nodiscard]] Tensor take(Activation activation);
  void drop(Activation activation);  // nothing where it does not exist
  // What the way of keeping does not keep.
  void drop_unless_kept(std::initializer_list<Activation> activations, Keeping keeping);

 private:
  static std::size_t index(Activation activation) { return static_cast<std::size_t>(activation); }

  std::array<Tensor, kActivations> tensors_;
  std::array<bool, kActivations> live_{};
};

}  // namespace headroom
