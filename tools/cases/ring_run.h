// Attention over ranks as one of them runs it: rehearsed, and for real.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headroom/comm.h"
#include "headroom/parallel.h"

namespace headroom {

// The tensors of a rank for the run, loaded from those of the whole sequence in host memory.
class RingRun {
 public:
  RingRun(Context& context, const ParallelSchedule& schedule, const AttentionBackward& whole,
          std::string_view pinned = {});

  void forward();
  void backward();
  // Writes the rank's results into those of the whole sequence.
  void store();

 private:
  [[nodiscard]] Tensor load(std::string_view name, const TensorView& whole, int dimension);
  [[nodiscard]] Tensor make(std::string_view name, DType dtype, const Shape& shape);
  [[nodiscard]] Tensor load_blocks(const TensorView& whole);
  void store(const Tensor& tensor, const TensorView& whole, int dimension);
  [[nodiscard]] RingForward views() const;

  Context& context_;
  const ParallelSchedule& schedule_;
  const AttentionBackward& whole_;
  std::string pinned_;
  int rank_;
  Tensor query_, key_, value_, output_, lse_, sinks_, starts_, blocks_;
  Tensor output_gradient_, lse_gradient_, query_gradient_, key_gradient_, value_gradient_, sinks_gradient_;
};

// The layout of one rank's forward and backward.
[[nodiscard]] Layout rehearse_ring(const ParallelSchedule& schedule, const AttentionBackward& whole,
                                   const DeviceDescription& device, const Ranks& ranks,
                                   std::string_view pinned = {});

// Runs body(communicator) for every rank, each on a thread of its own, and throws the first error again.
void on_thread_ranks(int count, const LinkModel& link, const std::function<void(Communicator&)>& body);

// Forward and backward as one rank, and the rank's results.
void run_ring_rank(const ParallelSchedule& schedule, const AttentionBackward& whole,
                   Communicator& communicator, Backend& backend, std::string_view pinned = {});

// Makes the backend of a rank. It is called on the rank's thread.
using MakeBackend = std::function<std::unique_ptr<Backend>(int rank)>;
// One thread each, on the CPU.
[[nodiscard]] MakeBackend cpu_of_each_rank();

}  // namespace headroom
