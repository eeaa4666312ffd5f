#include "model/last_weights.h"

namespace headroom {
namespace {

bool divides_vocabulary(const Decoder& decoder) {
  return decoder.strategy().loss_ranks == LossRanks::vocabulary;
}
std::size_t last_unit(const Decoder& decoder) {
  return unit_of_layer(decoder.config().layers);
}
bool ties_output(const Decoder& decoder) {
  return &decoder.parameters().output() == &decoder.parameters().embedding();
}
// Whether the output weight is in the embedding's unit, which is gathered for it.
bool gathers_embedding(const Decoder& decoder) {
  return ties_output(decoder) && !divides_vocabulary(decoder);
}

// The rows of the rank's words.
TensorView own_rows(const FlatBuffer& flat, const Decoder& decoder) {
  const Ranks& ranks = flat.context.ranks();
  const VocabularySlice slice = vocabulary_slice(decoder.parameters(), ranks.rank, ranks.count);
  const Parameter& output = decoder.parameters().output();
  if (!flat.divided) {
    return FlatPart{.values = flat.tensor, .begin = 0}.of(output).slice(0, slice.first, slice.words);
  }
  const std::size_t unit = ties_output(decoder) ? kEmbeddingUnit : last_unit(decoder) + 1;
  const ShardSlice own = flat.shards.slice(ranks.rank, unit);
  const std::int64_t hidden = output.shape[1];
  return flat.tensor.view().slice(0, own.own_begin, slice.words * hidden).reshape({slice.words, hidden});
}

}  // namespace

LastWeights::LastWeights(const FlatBuffer& weights, const Decoder& decoder)
    : last_(weights, last_unit(decoder)) {
  if (gathers_embedding(decoder)) tied_.emplace(weights, kEmbeddingUnit);
  const ParameterTable& parameters = decoder.parameters();
  final_norm_ = last_.wait().of(parameters.final_norm());
  output_ = divides_vocabulary(decoder) ? own_rows(weights, decoder)
                                        : (tied_ ? *tied_ : last_).wait().of(parameters.output());
}

LastGradients::LastGradients(const FlatBuffer& gradients, const Decoder& decoder)
    : last_(gradients, last_unit(decoder)) {
  if (gathers_embedding(decoder)) tied_.emplace(gradients, kEmbeddingUnit);
  const ParameterTable& parameters = decoder.parameters();
  final_norm_ = last_.part().of(parameters.final_norm());
  output_ = divides_vocabulary(decoder) ? own_rows(gradients, decoder)
                                        : (tied_ ? *tied_ : last_).part().of(parameters.output());
}

void LastGradients::add() const {
  if (tied_) tied_->add();
  last_.add();
}

}  // namespace headroom
