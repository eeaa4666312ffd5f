// What the memory room asks of the ranks that work on a step together. One implementation per transport,
// below this room; a rehearsal has none and writes down what would be sent. Every rank makes the same calls
// in the same order.
#pragma once

#include <string_view>

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

// Which of how many. A program that says nothing of ranks is the one rank of one.
struct Ranks {
  int rank = 0;
  int count = 1;

  bool operator==(const Ranks&) const = default;
};
// Throws where the rank is not one of them.
void validate(const Ranks& ranks);

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual Ranks ranks() const = 0;

  // values <- their sum over all ranks, element by element, added in the order of the ranks: the same bits on
  // each. f32 or f64, dense, in the device's memory; in the order of the stream.
  virtual void all_reduce(const TensorView& values, const Stream& stream) = 0;
  // The same of one number on the host, which waits for it.
  [[nodiscard]] virtual double all_reduce(double value) = 0;

  // Ends every call of every rank, those under way and those to come, with an error of kind runtime that
  // gives the reason. What a rank that fails calls, so that the others do not wait for it.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace headroom
