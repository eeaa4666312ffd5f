// The one table of a model's parameters: name, shape, and place in one flat buffer. Whatever walks over
// parameters (loading, saving, the optimizer, gradients) walks over this. Each begins at a multiple of 64
// elements, so that its view is 64-byte aligned in every dtype; the padding between is part of elements() and
// is kept zero.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headroom/core/tensor_view.h"
#include "headroom/model/config.h"

namespace headroom {

class Staging;
class Tensor;
struct TensorPart;

// The weights of a layer, in the order in which they lie in the flat buffer. Which of them a layer has
// follows from its LayerSpec; src/model/layer_table.h has their names and shapes.
enum class Weight : std::uint8_t {
  norm1,
  query,
  key,
  value,
  output,
  query_norm,
  key_norm,
  norm2,
  gate,
  up,
  down,
};
inline constexpr std::size_t kLayerWeights = 11;

struct Parameter {
  std::string name;         // Hugging Face's
  Shape shape;              // matrices are [outputs, inputs]
  std::int64_t offset = 0;  // in elements, into the flat buffer
  bool decays = false;      // by weight decay: matrices do, norm weights do not
};

class ParameterTable {
 public:
  static constexpr std::int64_t kAlignment = 64;  // elements

  explicit ParameterTable(const ModelConfig& config);

  [[nodiscard]] std::span<const Parameter> entries() const { return entries_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }  // of the flat buffer, padding included
  [[nodiscard]] std::int64_t parameters() const { return parameters_; }  // without padding
  [[nodiscard]] std::int64_t layers() const { return std::ssize(by_layer_); }
  [[nodiscard]] const Parameter* find(std::string_view name) const;  // null where there is none
  [[nodiscard]] const Parameter& at(std::string_view name) const;    // throws where there is none

  [[nodiscard]] const Parameter& embedding() const { return entries_.front(); }
  [[nodiscard]] const Parameter& final_norm() const { return entries_[final_norm_]; }
  // The projection to the vocabulary: the embedding where the model ties them.
  [[nodiscard]] const Parameter& output() const;
  // Null where the layer does not have the weight.
  [[nodiscard]] const Parameter* find(std::int64_t layer, Weight weight) const;

  // Returns a parameter's part of a flat buffer [elements()] of any dtype, also of a phantom's.
  [[nodiscard]] TensorView view(const TensorView& flat, const Parameter& parameter) const;

  // Returns a parameter's part of a flat tensor.
  [[nodiscard]] TensorPart part(const Tensor& flat, const Parameter& parameter) const;

  // Zeroes what lies between the parameters of a flat tensor.
  void clear_padding(const Tensor& flat, Staging& staging) const;

 private:
  // Returns its place in entries().
  std::size_t add(std::string name, const Shape& shape, bool decays);
  void check_flat(const TensorView& flat) const;

  std::vector<Parameter> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::vector<std::array<std::size_t, kLayerWeights>> by_layer_;  // [layers]; 0, the embedding's: not there
  std::size_t final_norm_ = 0;
  std::int64_t elements_ = 0;
  std::int64_t parameters_ = 0;
};

}  // namespace headroom
