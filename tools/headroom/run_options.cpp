#include "run_options.h"

#include <fmt/ostream.h>

namespace headroom {

void add_pin_options(Command app, PinOptions& pins) {
  app.add_text("--layers", pins.layers,
               "Pins what layers do: keep:8,attention:4,recompute:24 (also offload:N, every:N)");
  app.add_whole("--loss-chunk", pins.loss_chunk_tokens, 1, kMostTokens,
                "Pins the tokens of a chunk of the loss");
  app.add_whole("--mlp-tile", pins.mlp_tile_tokens, 1, kMostTokens, "Pins the tokens of a tile of the MLP");
  app.add_choice("--optimizer-state", pins.optimizer_state, {"device", "host"},
                 "Pins where moments and master weights live");
}

void add_rank_options(Command app, PinOptions& pins) {
  app.add_whole("--ring", pins.ring, 1, kMostRanks,
                "Pins the ranks that divide every sequence; groups of so many divide the batch");
  app.add_choice(
      "--shard", pins.shard, {"none", "optimizer", "full"},
      "Pins what ranks divide of the training state: optimizer divides moments and master weights, full "
      "weights and gradients too");
  app.add_choice(
      "--loss-ranks", pins.loss_ranks, {"tokens", "vocabulary"},
      "Pins how ranks share the loss. tokens: each computes its own tokens over the whole vocabulary. "
      "vocabulary: each computes a slice of the vocabulary for the tokens of all ranks");
}

void add_link_options(Command app, std::optional<std::string>& link, std::optional<double>& latency_seconds) {
  app.add_text("--link", link,
               "What a rank's link moves each way, such as 400Gb/s or 50GB/s: time is estimated with it "
               "(default: the device's)");
  app.add_seconds("--latency", latency_seconds, {.most = kMostLatencySeconds},
                  "How late a message on that link arrives, such as 5us or 0.1ms");
}

void add_host_budget_option(Command app, std::optional<std::int64_t>& bytes) {
  app.add_budget(
      "--host-budget", bytes,
      "On a GPU: host memory that layer inputs and the optimizer's state may move to (default: what "
      "is free now, less 4 GiB)");
}

void print_implementations(std::span<const StepImplementation> implementations, int indent,
                           std::ostream& out) {
  std::string_view label = "kernels";
  for (const StepImplementation& one : implementations) {
    fmt::print(out, "{:<{}}{} {}\n", label, indent, one.family, describe(one));
    label = "";
  }
}

}  // namespace headroom
