// The interface between a Context and the other ranks that work on a step. There is one implementation per
// transport (headroom/comm.h). A rehearsal has none: it records what would be sent. Every rank makes the same
// calls in the same order.
#pragma once

#include <string_view>

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

// A rank and the number of ranks. By default there is one rank.
struct Ranks {
  int rank = 0;
  int count = 1;

  bool operator==(const Ranks&) const = default;
};
// Throws unless 0 <= rank < count.
void validate(const Ranks& ranks);

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual Ranks ranks() const = 0;

  // values <- their sum over all ranks, element by element, added in the order of the ranks, so that every
  // rank has the same bits. The values are f32 or f64, dense, in the device's memory. The sum is made in the
  // order of the stream's work.
  virtual void all_reduce(const TensorView& values, const Stream& stream) = 0;
  // Returns the sum over all ranks of one number on the host. Waits until every rank has given its number.
  [[nodiscard]] virtual double all_reduce(double value) = 0;

  // Ends every call of every rank, those under way and those to come, with an error of kind runtime that
  // gives the reason. A rank that fails calls this, so that the others do not wait for it.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace headroom
