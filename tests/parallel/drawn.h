// Attention over a whole sequence, drawn: any mask, any length, documents anywhere.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "attention/chunks.h"
#include "attention_cases.h"
#include "headroom/parallel.h"

namespace headroom {

struct DrawnRing {
  AttentionCase attention;
  int ranks = 1;
  PartitionKind kind = PartitionKind::contiguous;

  [[nodiscard]] std::string name() const {
    const AttentionProblem& p = attention.problem;
    return fmt::format(
        "b{} {} h{}/{} ranks {} {} causal {} left {} right {} documents {} dilations {} mixed {} blocks "
        "{}x{}",
        p.batch, p.seq_k, p.heads_q, p.heads_kv, ranks, headroom::name(kind), p.mask.causal,
        p.mask.window_left, p.mask.window_right, p.mask.max_documents, p.mask.dilation_count,
        p.mask.mix_dilations, p.mask.block_rows, p.mask.block_columns);
  }
};

inline DrawnRing draw_ring(std::uint64_t seed) {
  Draw draw(seed);
  DrawnRing drawn;
  AttentionProblem& problem = drawn.attention.problem;
  problem.batch = 1 + draw.below(2);
  problem.seq_q = problem.seq_k = draw.below(4) == 0 ? draw.below(12) : draw.below(120);
  problem.heads_kv = 1 + draw.below(3);
  problem.heads_q = problem.heads_kv * (1 + draw.below(3));
  problem.head_dim = 8;
  Mask& mask = problem.mask;
  mask.causal = draw.coin();
  if (draw.coin()) mask.window_left = draw.below(40);
  if (draw.coin()) mask.window_right = draw.below(40);
  if (draw.coin()) {
    std::int64_t rest = problem.seq_k;
    for (std::int64_t i = draw.below(5); i >= 0; --i) {
      drawn.attention.document_lengths.push_back(draw.below(rest + 1));
      rest -= drawn.attention.document_lengths.back();
    }
    mask.max_documents = std::ssize(drawn.attention.document_lengths);
  }
  switch (draw.below(3)) {
    case 0:
      mask.mix_dilations = draw.coin();
      mask.dilation_count = mask.mix_dilations || problem.heads_q % 2 == 0 ? 2 : 1;
      for (int i = 0; i < mask.dilation_count; ++i) {
        mask.dilations[static_cast<std::size_t>(i)] = {1 + draw.below(90), 1 + draw.below(5)};
      }
      break;
    case 1:
      mask.block_rows = 1 + draw.below(6);
      mask.block_columns = 1 + draw.below(6);
      mask.max_blocks_per_row = 1 + draw.below(4);
      break;
    default: break;
  }
  constexpr int kRanks[] = {1, 2, 3, 4, 5, 8, 16};
  drawn.ranks = kRanks[draw.below(7)];
  drawn.kind = static_cast<PartitionKind>(draw.below(3));
  return drawn;
}

}  // namespace headroom
