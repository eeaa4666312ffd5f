// Runs a program as it is meant to be run: rehearsed, packed, then for real on the CPU.
#pragma once

#include <utility>

#include "headroom/cpu.h"
#include "headroom/memory.h"

namespace headroom {

template <class Program>
Layout rehearse(Program&& program, const DeviceDescription& device = {.name = "made up"}) {
  Context context(device);
  program(context);
  return make_layout(std::move(context).take_ledger());
}

template <class Program>
void run_rehearsed(Program&& program) {
  CpuBackend backend(2);
  Context context(backend, rehearse(program, backend.description()));
  program(context);
}

}  // namespace headroom
