// An operation: its table of rows, and the one way to run it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>

#include "headroom/core/kernel_family.h"
#include "headroom/memory/context.h"

namespace headroom {

template <class Call>
Support on_cpus(const Call&, const DeviceDescription& device) {
  return device.kind == DeviceKind::cpu ? Support::yes() : Support::no("runs on CPUs");
}
template <class Call>
Support on_cuda_gpus(const Call&, const DeviceDescription& device) {
  return device.kind == DeviceKind::cuda ? Support::yes() : Support::no("runs on CUDA GPUs");
}

// Picks the row for the Context's device, takes its workspace and runs it. Where no row serves, an error says
// why, in a rehearsal already.
template <class Call>
void run_operation(Context& context, std::span<const OperationRow<Call>> rows, const Call& call, Work work) {
  const OperationRow<Call>& row = pick(rows, call, context.description(), {}, work.kernel);
  work.row = row.name;
  work.assumed = row.assumed();
  Tensor workspace;
  if (row.workspace_bytes != nullptr) {
    work.workspace_bytes = row.workspace_bytes(call, context.description());
  }
  if (work.workspace_bytes > 0) {
    std::array<char, 64> name;  // on the stack: a step takes nothing from the heap
    const auto end = fmt::format_to_n(name.data(), name.size(), "{} workspace", work.kernel).out;
    workspace = context.allocate({.name = std::string_view(name.data(), end),
                                  .category = Category::workspace,
                                  .dtype = DType::u8,
                                  .shape = {work.workspace_bytes}});
  }
  context.run(work, [&](const Stream& stream) { row.run(call, workspace, stream); });
}

}  // namespace headroom
