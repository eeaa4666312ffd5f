#include "headroom/model/parameters.h"

#include "headroom/core/checked.h"
#include "model/layer_table.h"

namespace headroom {

ParameterTable::ParameterTable(const ModelConfig& config) {
  validate(config);
  add("model.embed_tokens.weight", {config.vocab, config.hidden}, true);
  by_layer_.resize(static_cast<std::size_t>(config.layers));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerSpec spec = layer_spec(config, layer);
    for (const WeightRow& row : layer_weights()) {
      if (!row.exists(spec)) continue;
      by_layer_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(row.weight)] =
          add(fmt::format("model.layers.{}.{}.weight", layer, row.name), row.shape(config), row.decays);
    }
  }
  final_norm_ = add("model.norm.weight", {config.hidden}, false);
  if (!config.tied_embeddings) add("lm_head.weight", {config.vocab, config.hidden}, true);
}

std::size_t ParameterTable::add(std::string name, const Shape& shape, bool decays) {
  by_name_.emplace(name, entries_.size());
  entries_.push_back({.name = std::move(name), .shape = shape, .offset = elements_, .decays = decays});
  parameters_ = checked_add(parameters_, shape.elements());
  elements_ = round_up(checked_add(elements_, shape.elements()), kAlignment);
  return entries_.size() - 1;
}

const Parameter& ParameterTable::output() const {
  return final_norm_ + 1 == entries_.size() ? embedding() : entries_.back();
}

const Parameter* ParameterTable::find(std::int64_t layer, Weight weight) const {
  const std::size_t place = by_layer_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(weight)];
  return place == 0 ? nullptr : &entries_[place];
}

const Parameter* ParameterTable::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const Parameter& ParameterTable::at(std::string_view name) const {
  const Parameter* parameter = find(name);
  check(parameter != nullptr, "the model has no parameter '{}'", name);
  return *parameter;
}

void ParameterTable::check_flat(const TensorView& flat) const {
  check(flat.shape() == Shape{elements_} && flat.is_dense(),
        "a buffer of shape {} is given for parameters; accepted: dense [{}]", flat.shape(), elements_);
}

TensorView ParameterTable::view(const TensorView& flat, const Parameter& parameter) const {
  check_flat(flat);
  return flat.slice(0, parameter.offset, parameter.shape.elements()).reshape(parameter.shape);
}

}  // namespace headroom
