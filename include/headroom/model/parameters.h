// The one table of a model's parameters: name, shape, and place in one flat buffer. Whatever walks over
// parameters (loading, saving, the optimizer, gradients) walks over this. Each begins at a multiple of 64
// elements, so that its view is 64-byte aligned in every dtype; the padding between is part of elements() and
// is kept zero.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headroom/core/tensor_view.h"
#include "headroom/model/config.h"

namespace headroom {

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
  [[nodiscard]] const Parameter* find(std::string_view name) const;      // null where there is none
  [[nodiscard]] const Parameter& at(std::string_view name) const;        // throws where there is none

  // A parameter's part of a flat buffer [elements()] of any dtype; phantoms too.
  [[nodiscard]] TensorView view(const TensorView& flat, const Parameter& parameter) const;

  // Zeroes what lies between the parameters.
  void clear_padding(const TensorView& flat) const;

 private:
  void add(std::string name, const Shape& shape, bool decays);
  void check_flat(const TensorView& flat) const;

  std::vector<Parameter> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::int64_t elements_ = 0;
  std::int64_t parameters_ = 0;
};

}  // namespace headroom
