// Attention on Hopper's tensor cores, the row `sm90`: the parts that need no CUDA, so that a machine without
// a GPU plans the same launches.
#pragma once

#include "attention/cuda/sequence.h"
#include "attention/cuda/sm90/block_lists.h"
#include "attention/cuda/sm90/intervals.h"
#include "attention/cuda/sm90/tiles.h"

namespace headroom::cuda::sm90 {

// Where every row of a tensor has to start: the copy engine's unit, and that of the stores of results.
inline constexpr std::int64_t kRowAlignmentBytes = 16;

// Where the rows and intervals of a call come from.
enum class Source : std::uint8_t {
  formula,  // all rows, or every rate-th; intervals follow from the place
  tables,   // all rows; intervals are read
  lists,    // rows and intervals are read
};

// Which kernels run a problem. It is decided here alone; the workspace and the launches read it.
struct Plan {
  [[nodiscard]] static Plan of(const AttentionProblem& problem);

  Source source = Source::formula;
  bool general = false;  // the kernels with a softcap and block lists, which have tiles of their own
  HeadTiles tiles{};
  bool turns = false;          // blocks add to dQ in the order of their keys
  std::int64_t key_parts = 1;  // blocks that divide the heads of a group, each with its own dK and dV

  bool operator==(const Plan&) const = default;
};

// Where it saves reads from memory, every other wave of key tiles passes over its queries the other way.
[[nodiscard]] Waves plan_waves(const AttentionProblem& problem, const DeviceDescription& device,
                               const Plan& plan);

// Both ways, without tables. Places are rows, or every rate-th of them; these stand at the same positions on
// both sides, from 0 on.
struct IntervalsOfPlaces {
  Intervals seen;     // keys that queries see
  Intervals seen_by;  // queries that see keys

  [[nodiscard]] static IntervalsOfPlaces of(const AttentionProblem& problem, const Dilation& dilation);
};

// What backward holds for each query. It lies in the workspace, or in `open` for open queries.
struct QueryState {
  [[nodiscard]] static QueryState of(const AttentionProblem& problem, const Plan& plan, Pieces& pieces);

  std::int64_t padded_places = 0;
  float* lse_log2 = nullptr;
  float* minus_delta = nullptr;
  float* sums = nullptr;  // of dQ, unless it is apart
  std::int64_t sums_bytes = 0;
};

// Of open queries; 0 where chunks differ in their rows or may differ in their implementation (dilation, block
// lists), and where there are no sums of dQ (wide heads) or dO is rounded for every chunk (f32).
[[nodiscard]] std::int64_t open_bytes(const AttentionProblem& problem);

struct Workspace : cuda::Workspace {
  // `open`: the memory of open queries.
  Workspace(const AttentionProblem& problem, Pass pass, std::byte* base, std::byte* open = nullptr);

  Plan plan;
  Visits visits;                          // with block lists
  Visits query_visits;                    // of dQ's kernel, where it is apart
  std::int32_t* seen_by_first = nullptr;  // backward with tables or lists
  std::int32_t* seen_by_last = nullptr;
  static constexpr std::int64_t kNextTileBytes = 16;
  std::int32_t* counters = nullptr;  // the next tile to take; then, in backward, turns
  std::int64_t counter_bytes = 0;
  std::uint16_t* output_gradient = nullptr;  // dO in the problem's dtype, dense, where it is f32
  QueryState queries;
};

// Compiled with CUDA.
void forward(const AttentionProblem& problem, const AttentionForward& views, const TensorView& workspace,
             const Stream& stream);
void backward(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& workspace,
              const Stream& stream);

}  // namespace headroom::cuda::sm90
