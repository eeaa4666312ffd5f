// Published scaling of attention over ranks beside what play_attention predicts for it. The rate of one GPU
// is the published one; rates of links are their makers'. Prints a Markdown table for docs/results.md.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "headroom/parallel.h"

namespace headroom {
namespace {

struct Published {
  const char* what;
  std::int64_t ranks;
  std::int64_t heads_q;
  int group;             // ranks that divide heads
  double forward_flops;  // per second, of one GPU alone
  double backward_flops;
  double link_bytes_per_second;
  double latency_seconds;
  bool both_passes;
  double share;  // of what the GPUs would reach alone
};

AttentionTime predicted(const Published& row) {
  constexpr std::int64_t kTokensOfRank = 8192;
  constexpr double kMemoryRate = 0.8 * 3.35e12;  // of an H100 or H800
  AttentionProblem problem{.seq_q = row.ranks * kTokensOfRank,
                           .seq_k = row.ranks * kTokensOfRank,
                           .heads_q = row.heads_q,
                           .heads_kv = 8,
                           .head_dim = 128,
                           .dtype = DType::bf16};
  problem.mask.causal = true;
  return play_attention(
      problem, {}, make_partition(PartitionKind::zigzag, static_cast<int>(row.ranks), problem, {}), row.group,
      {.forward = {.flops_per_second = row.forward_flops},
       .backward = {.flops_per_second = row.backward_flops},
       .memory_bytes_per_second = kMemoryRate,
       .link = {.latency = Seconds(row.latency_seconds), .bytes_per_second = row.link_bytes_per_second}});
}

void print(const Published& row) {
  const AttentionTime time = predicted(row);
  const double seconds = row.both_passes ? time.seconds() : time.forward.seconds;
  const double computed = row.both_passes
                              ? time.forward.mean_compute_seconds + time.backward.mean_compute_seconds
                              : time.forward.mean_compute_seconds;
  // What one GPU would need for its share of the pairs, without the ring's own kernels.
  const double tokens = 8192.0 * static_cast<double>(row.ranks);
  const double pairs =
      tokens * tokens / 2 * static_cast<double>(row.heads_q) / static_cast<double>(row.ranks);
  double ideal = 4 * 128 * pairs / row.forward_flops;
  if (row.both_passes) ideal += 10 * 128 * pairs / row.backward_flops;
  const double share = ideal / seconds;
  fmt::print("| {} | {:.1f} % | {:.1f} % | {:+.1f} % | {:.1f} % |\n", row.what, 100 * row.share, 100 * share,
             100 * (share / row.share - 1), 100 * (1 - computed / seconds));
}

}  // namespace
}  // namespace headroom

int main() {
  using headroom::Published;
  // ring-flash-attention: FlashAttention 2 alone makes 591.5 forward and 154.7 forward and backward passes a
  // second of 8,192 tokens, 32 query heads. An H800's NVLink moves 200 GB/s each way.
  constexpr double kForward = 591.5 * 4 * 128 * 32 * 8192.0 * 8192 / 2;
  constexpr double kBackward = 10 * 128 * 32 * 8192.0 * 8192 / 2 / (1 / 154.7 - 1 / 591.5);
  // Context parallelism on H100s: the best of the published ways is taken for the GPU's own rate.
  constexpr double kContextParallel = 645e12;
  fmt::print(
      "| published | share of ideal | predicted | error | predicted bubbles |\n|---|---|---|---|---|\n");
  for (const Published& row : {
           Published{"ring-flash-attention zigzag, 8 x H800, forward", 8, 32, 1, kForward, kBackward, 200e9,
                     5e-6, false, 0.852},
           Published{"the same, forward and backward", 8, 32, 1, kForward, kBackward, 200e9, 5e-6, true,
                     0.902},
           Published{"point-to-point ring, 8 x H100, causal forward", 8, 64, 1, kContextParallel,
                     kContextParallel, 450e9, 5e-6, false, 420.0 / 645},
           Published{"Ulysses, 8 x H100, causal forward", 8, 64, 8, kContextParallel, kContextParallel, 450e9,
                     5e-6, false, 600.0 / 645},
           Published{"point-to-point ring, 64 x H100, causal forward", 64, 64, 1, kContextParallel,
                     kContextParallel, 50e9, 10e-6, false, 445.0 / 645},
       }) {
    headroom::print(row);
  }
  return 0;
}
