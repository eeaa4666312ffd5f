// Options that the commands which plan or run a training step share.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>

#include "command.h"
#include "headroom/plan.h"

namespace headroom {

// --layers, --loss-chunk, --mlp-tile, --optimizer-state.
void add_pin_options(Command app, PinOptions& pins);
// --ring, --shard and --loss-ranks, of commands that have ranks.
void add_rank_options(Command app, PinOptions& pins);
// --link and --latency, of the same.
void add_link_options(Command app, std::optional<std::string>& link, std::optional<double>& latency_seconds);

inline constexpr std::int64_t kMostRanks = 1024;
inline constexpr double kMostLatencySeconds = 60;  // of a message between ranks

// --host-budget, of commands that run on the device.
void add_host_budget_option(Command app, std::optional<std::int64_t>& bytes);

// A line for each family; `indent` is the width of what stands at the beginning of a line.
void print_implementations(std::span<const StepImplementation> implementations, int indent,
                           std::ostream& out);

}  // namespace headroom
