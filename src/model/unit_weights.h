// The weights that a part of a step reads and the gradients that it adds to, whole on this rank. Where ranks
// divide them, a unit's weights are gathered before they are used, while the unit before it computes where
// that is known, and freed after it. The unit's gradients are made in a buffer of their own and added over
// the ranks, those of a layer while the next one computes, and each rank keeps its slice of the sum.
#pragma once

#include <cstdint>
#include <optional>

#include "headroom/memory/context.h"
#include "headroom/model/shards.h"

namespace headroom {

// Elements begin, begin + 1, ... of a flat buffer of the parameter table.
struct FlatPart {
  TensorView values;
  std::int64_t begin = 0;

  [[nodiscard]] TensorView of(const Parameter& parameter) const {
    return values.slice(0, parameter.offset - begin, parameter.shape.elements()).reshape(parameter.shape);
  }
};

// The flat buffers of a step, as this rank has them.
struct FlatBuffer {
  Context& context;
  const Shards& shards;
  const Tensor& tensor;
  bool divided = false;  // the tensor has the rank's slices alone
  bool is_zero = false;  // of gradients: every layer's are zero when its backward begins
};

class UnitWeights {
 public:
  // Starts the gathering. wait() has to be called before the weights are used, and before this is destroyed.
  UnitWeights(const FlatBuffer& weights, std::size_t unit);

  [[nodiscard]] std::size_t unit() const { return unit_; }
  // Makes the stream main wait for the weights, and returns them.
  [[nodiscard]] const FlatPart& wait();

 private:
  Context* context_;
  std::size_t unit_;
  Tensor gathered_;  // empty where every rank has all weights
  FlatPart part_;
  std::optional<Ticket> arrived_;  // until somebody has waited
};

// The weights of one unit after another. While a unit is used, the gathering of the next one is under way.
class UnitWeightsInTurn {
 public:
  explicit UnitWeightsInTurn(const FlatBuffer& weights) : weights_(weights) {}

  // Starts the gathering of a unit that take() will be asked for next.
  void start(std::size_t unit);
  // Returns the unit that was started, or starts this one. wait() of it makes main wait for its weights.
  [[nodiscard]] UnitWeights take(std::size_t unit);

 private:
  const FlatBuffer& weights_;
  std::optional<UnitWeights> next_;
};

class UnitGradients {
 public:
  UnitGradients(const FlatBuffer& gradients, std::size_t unit);

  [[nodiscard]] const FlatPart& part() const { return part_; }
  // Whether the part held nothing but zeros when this was made. A unit of its own always does.
  [[nodiscard]] bool are_zero() const { return gradients_.divided || gradients_.is_zero; }
  // Adds what was made, summed over the ranks, to the gradients that the rank keeps. To be called once, by
  // all ranks.
  void add() const;
  // The same in two halves, between which main goes on. What was made must not be written after the first.
  void start();
  void finish();
  [[nodiscard]] bool started() const { return sum_.has_value(); }

 private:
  // Adds the rank's slice of what was made, which has the sum over the ranks.
  void keep() const;

  FlatBuffer gradients_;
  std::size_t unit_;
  Tensor made_;  // empty where every rank keeps all gradients
  FlatPart part_;
  std::optional<SumInFlight> sum_;  // between the halves
};

// The gradients of one unit after another. While those of a unit are made, the sum of the last one's is under
// way. One sum is at a time, as each takes two buffers of a unit.
class UnitGradientsInTurn {
 public:
  // Takes gradients that were made, and finishes those of the unit before.
  void take(UnitGradients made);
  // Starts the sum of what was taken last, unless that was done.
  void start();
  // Finishes the sum of what was taken last.
  void finish();

 private:
  std::optional<UnitGradients> last_;
};

}  // namespace headroom
