// Work: what a kernel does, counted where its problem is known. A rehearsal writes it down without doing it,
// so that time is predicted from the very step that will run; a run lays the seconds beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "headroom/core/stream.h"

namespace headroom {

enum class WorkKind : std::uint8_t {
  kernel,
  copy,           // between two spaces
  host,           // what is no kernel: filling a batch, reading a value back
  communication,  // between ranks
};

struct Work {
  WorkKind kind = WorkKind::kernel;
  std::string_view kernel{};  // what it computes; a literal
  std::string_view row{};     // of the kernel's family, which the device's description picked
  bool assumed = false;       // the row states its bytes and has no kernel yet: it can be rehearsed, not run
  double flops = 0;
  double bytes = 0;  // that have to move at least: inputs read once, results written once
  std::int64_t workspace_bytes = 0;
  // Of communication, and of kernels that exchange messages on their way: what this rank sends to others and
  // receives from them.
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t rounds = 0;  // of messages that wait for one another; 0: as many as fill the workspace
};

// The n-th piece of work of a phase; later runs of the phase add their time to it.
struct WorkRecord {
  Work work;
  StreamId stream = StreamId::main;
  std::uint32_t stage = 0;        // Ledger::stage_path() reads it
  std::size_t events_before = 0;  // of the phase's trace in the ledger
  std::int64_t runs = 0;
  double seconds = 0;  // of all runs that the device measured
  double began = 0;    // the last run, since the Context was made
  double last_seconds = 0;
};

}  // namespace headroom
