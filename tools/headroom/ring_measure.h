// One case of `headroom bench ring`: what is measured, and how. Ranks are threads of this process, or it is
// one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench.h"
#include "command.h"
#include "headroom/parallel.h"
#include "launched_ranks.h"

namespace headroom {

// The link that messages between threads are sent over, as it was asked for.
struct RingLink {
  std::optional<std::int64_t> bytes_per_second;
  double share = 0;  // of the time of a pass that its messages take, in place of a rate; 0: not asked for
  double latency_seconds = 0;

  [[nodiscard]] bool given() const { return bytes_per_second || share > 0 || latency_seconds > 0; }
};

// --link-rate, --link-share and --latency.
void add_link_model_options(Command app, RingLink& link);
// Throws where both a rate and a share are given.
void check_link(const RingLink& link);

// The largest of what the ranks give.
[[nodiscard]] double largest(double value, Communicator& communicator);

struct RingBenchCase {
  AttentionProblem problem;
  std::string mask;
  std::vector<std::int32_t> document_starts;
  int ranks = 1;
  PartitionKind partition = PartitionKind::zigzag;
  AttentionWay way = AttentionWay::ring;
  int group = 0;  // ranks that divide heads, in the product
};
// The lists of the whole sequence, in host memory. They point into the case.
[[nodiscard]] AttentionForward lists_of(const RingBenchCase& c);

// A case over the link that was asked for. Each pass has a link of its own: where the link's rate is a share,
// they differ.
struct LinkedPasses {
  double alone_forward_ms = 0;  // without the link
  double alone_backward_ms = 0;
  LinkModel forward_link;
  LinkModel backward_link;
  double backward_hop_ms = 0;                // of the gradients of one transfer, the largest, over that link
  std::optional<AttentionTime> predicted{};  // by playing the schedule; none for allgather, which has none
};

// Times are those of the slowest rank, bytes those of the rank where they are largest.
struct RingRow {
  RingBenchCase c;
  std::string reason;  // where it did not run
  double forward_ms = 0;
  double backward_ms = 0;
  double single_forward_ms = 0;
  double single_backward_ms = 0;
  std::int64_t sent_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t single_bytes = 0;
  double overlap = 0;
  double error = 0;
  double rest_seconds = 0;  // before each pass
  double rank_share = 1;    // of the device that one rank alone has
  std::optional<LinkedPasses> linked;
};

// Measures the case over its ranks. Where ranks are processes, each of them calls this with the same case,
// and there is no link.
[[nodiscard]] RingRow measure_ring(const RingBenchCase& c, const BenchOptions& options, const RingLink& link,
                                   LaunchedRanks& launched, const std::vector<Device>& devices,
                                   const BenchDevice& device);

// Adds what one rank alone takes with all threads, and with that what a plan says of the link. A pass may
// take longer than ranks wait for each other: where they are processes, the others are done with each other
// then.
void measure_single(RingRow& row, const BenchOptions& options, const BenchDevice& device);

// The rates of a rank, from what one rank alone reached with the whole device.
[[nodiscard]] RankRates rank_rates(const RingRow& row, const LinkModel& link);

}  // namespace headroom
