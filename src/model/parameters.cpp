#include "headroom/model/parameters.h"

#include <cstring>

#include "headroom/core/checked.h"

namespace headroom {

ParameterTable::ParameterTable(const ModelConfig& config) {
  validate(config);
  const std::int64_t hidden = config.hidden;
  const std::int64_t queries = config.heads_q * config.head_dim;
  const std::int64_t keys = config.heads_kv * config.head_dim;
  const auto matrix = [&](std::string name, std::int64_t outputs, std::int64_t inputs) {
    add(std::move(name), {outputs, inputs}, true);
  };
  const auto norm = [&](std::string name, std::int64_t width) { add(std::move(name), {width}, false); };

  matrix("model.embed_tokens.weight", config.vocab, hidden);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto named = [i](std::string_view part) {
      return fmt::format("model.layers.{}.{}.weight", i, part);
    };
    norm(named("input_layernorm"), hidden);
    matrix(named("self_attn.q_proj"), queries, hidden);
    matrix(named("self_attn.k_proj"), keys, hidden);
    matrix(named("self_attn.v_proj"), keys, hidden);
    matrix(named("self_attn.o_proj"), hidden, queries);
    if (config.qk_norm) {
      norm(named("self_attn.q_norm"), config.head_dim);
      norm(named("self_attn.k_norm"), config.head_dim);
    }
    norm(named("post_attention_layernorm"), hidden);
    matrix(named("mlp.gate_proj"), config.mlp, hidden);
    matrix(named("mlp.up_proj"), config.mlp, hidden);
    matrix(named("mlp.down_proj"), hidden, config.mlp);
  }
  norm("model.norm.weight", hidden);
  if (!config.tied_embeddings) matrix("lm_head.weight", config.vocab, hidden);
}

void ParameterTable::add(std::string name, const Shape& shape, bool decays) {
  by_name_.emplace(name, entries_.size());
  entries_.push_back({.name = std::move(name), .shape = shape, .offset = elements_, .decays = decays});
  parameters_ = checked_add(parameters_, shape.elements());
  elements_ = round_up(checked_add(elements_, shape.elements()), kAlignment);
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

void ParameterTable::clear_padding(const TensorView& flat) const {
  check_flat(flat);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::int64_t begin = entries_[i].offset + entries_[i].shape.elements();
    const std::int64_t end = i + 1 < entries_.size() ? entries_[i + 1].offset : elements_;
    const TensorView padding = flat.slice(0, begin, end - begin);
    if (end > begin) std::memset(padding.raw(), 0, static_cast<std::size_t>(padding.bytes()));
  }
}

}  // namespace headroom
