// How a problem becomes calls of the interval kernels (attention/cpu/intervals.h): as it is, or, where it is
// dilated, as the rows that take part.
#pragma once

#include "attention/cpu/intervals.h"
#include "attention/implementations.h"

namespace headroom {

[[nodiscard]] cpu::AttentionSizes kernel_sizes(const AttentionProblem& problem,
                                               const DeviceDescription& device);
[[nodiscard]] std::int64_t kernel_bytes(const cpu::AttentionSizes& sizes, Pass pass);
[[nodiscard]] cpu::HeadsView heads_view(const TensorView& view);
template <class T = float>
[[nodiscard]] cpu::StatisticsView<T> statistics_view(const TensorView& view) {
  if (view.elements() == 0) return {};
  return {view.data<T>(), view.stride(0), view.stride(1)};
}

[[nodiscard]] std::int64_t dilated_workspace_bytes(const AttentionProblem& problem,
                                                   const DeviceDescription& device, Pass pass);
void dilated_forward(const AttentionProblem& problem, const AttentionForward& views, std::byte* workspace,
                     const Stream& stream);
void dilated_backward(const AttentionProblem& problem, const AttentionBackward& views, std::byte* workspace,
                      const Stream& stream);

}  // namespace headroom
