#include "model/unit_weights.h"

#include <utility>

#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

// Memory for a whole unit.
Tensor take_unit(const FlatBuffer& flat, std::size_t unit, std::string_view name, Category category) {
  const std::span<const std::int64_t> begins = flat.shards.unit_begins();
  return flat.context.allocate({.name = name,
                                .category = category,
                                .dtype = flat.tensor.view().dtype(),
                                .shape = {begins[unit + 1] - begins[unit]}});
}

}  // namespace

UnitWeights::UnitWeights(const FlatBuffer& weights, std::size_t unit)
    : context_(&weights.context), unit_(unit) {
  if (!weights.divided) {
    part_ = {.values = weights.tensor, .begin = 0};
    return;
  }
  Context& context = weights.context;
  const std::int64_t begin = weights.shards.unit_begins()[unit];
  gathered_ = take_unit(weights, unit, "gathered weights", Category::parameters);
  part_ = {.values = gathered_, .begin = begin};
  const ShardSlice slice = weights.shards.slice(context.ranks().rank, unit);
  const TensorPart own{weights.tensor, slice.own_begin, slice.elements};
  arrived_ = context.all_gather(gathered_, weights.shards.counts(unit), own,
                                {"gathering of weights", static_cast<std::int64_t>(unit)});
  context.copy(StreamId::main, {gathered_, slice.flat_begin - begin, slice.elements}, own);
}

const FlatPart& UnitWeights::wait() {
  if (arrived_) context_->wait(StreamId::main, *arrived_);
  arrived_.reset();
  return part_;
}

void UnitWeightsInTurn::start(std::size_t unit) {
  if (weights_.divided) next_.emplace(weights_, unit);
}

UnitWeights UnitWeightsInTurn::take(std::size_t unit) {
  UnitWeights taken = next_ ? std::move(*next_) : UnitWeights(weights_, unit);
  next_.reset();
  check(taken.unit() == unit, "weights of unit {} were gathered where those of unit {} are used",
        taken.unit(), unit);
  static_cast<void>(taken.wait());
  return taken;
}

UnitGradients::UnitGradients(const FlatBuffer& gradients, std::size_t unit)
    : gradients_(gradients), unit_(unit) {
  if (!gradients.divided) {
    part_ = {.values = gradients.tensor, .begin = 0};
    return;
  }
  made_ = take_unit(gradients, unit, "gradients of a unit", Category::gradients);
  part_ = {.values = made_, .begin = gradients.shards.unit_begins()[unit]};
  zero(gradients.context, made_);
}

void UnitGradients::add() const {
  if (!gradients_.divided) return;
  gradients_.context.reduce_scatter(made_, gradients_.shards.counts(unit_));
  keep();
}

void UnitGradients::start() {
  if (!gradients_.divided) return;
  sum_ = gradients_.context.start_reduce_scatter(made_, gradients_.shards.counts(unit_),
                                                 {"sum of gradients", static_cast<std::int64_t>(unit_)});
}

void UnitGradients::finish() {
  if (!gradients_.divided) return;
  gradients_.context.finish_reduce_scatter(made_, gradients_.shards.counts(unit_), std::move(*sum_));
  sum_.reset();
  keep();
}

void UnitGradients::keep() const {
  Context& context = gradients_.context;
  const ShardSlice own = gradients_.shards.slice(context.ranks().rank, unit_);
  if (own.elements == 0) return;
  const TensorView kept = gradients_.tensor.view().slice(0, own.own_begin, own.elements);
  headroom::add(context, kept, part_.values.slice(0, own.flat_begin - part_.begin, own.elements), kept);
}

void UnitGradientsInTurn::take(UnitGradients made) {
  finish();
  last_.emplace(std::move(made));
}

void UnitGradientsInTurn::start() {
  if (last_ && !last_->started()) last_->start();
}

void UnitGradientsInTurn::finish() {
  if (last_) last_->finish();
  last_.reset();
}

}  // namespace headroom
