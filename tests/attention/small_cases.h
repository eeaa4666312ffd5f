// Every Hopper kernel and kind of mask on sequences of a few tiles, for `compute-sanitizer`, which takes
// minutes for one of the long cases, and for kernels that run on the host. A name selects:
// --gtest_filter='*Small*d128*'.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "headroom/attention.h"

namespace headroom {

struct SmallCase {
  std::string name;
  AttentionCase c;
};
inline void PrintTo(const SmallCase& small, std::ostream* out) {
  *out << small.name;
}

inline std::vector<SmallCase> small_cases() {
  std::vector<SmallCase> cases;
  const auto add = [&](const std::string& name, std::int64_t head_dim, std::int64_t seq, auto change) {
    SmallCase added{.name = fmt::format("d{}_{}", head_dim, name), .c = {}};
    added.c.group = "small";
    added.c.name = added.name;
    added.c.problem = {
        .seq_q = seq, .seq_k = seq, .heads_q = 2, .heads_kv = 1, .head_dim = head_dim, .dtype = DType::bf16};
    change(added.c);
    cases.push_back(std::move(added));
  };
  const auto causal = [](AttentionCase& c) { c.problem.mask.causal = true; };
  const auto documents = [&](AttentionCase& c) {
    causal(c);
    c.document_lengths = {100, 1, 0, c.problem.seq_q - 101};
    c.problem.mask.max_documents = 4;
  };
  const auto dilated = [](AttentionCase& c, std::initializer_list<Dilation> patterns) {
    c.problem.mask.causal = true;
    std::copy(patterns.begin(), patterns.end(), c.problem.mask.dilations.begin());
    c.problem.mask.dilation_count = static_cast<int>(patterns.size());
  };
  add("causal", 64, 300, causal);
  // So many keys that blocks do not take turns, and few queries.
  add("free_order", 64, 6400, [&](AttentionCase& c) {
    causal(c);
    c.problem.seq_q = 100;
    c.problem.deterministic = false;
  });
  add("softcap_sinks", 64, 200, [](AttentionCase& c) {
    c.problem.softcap = 3;
    c.problem.sinks = true;
    c.problem.dtype = DType::f16;
  });
  add("mixed_dilation", 64, 256, [&](AttentionCase& c) {
    dilated(c, {{64, 1}, {256, 4}});
    c.problem.mask.mix_dilations = true;
  });
  add("causal", 96, 300, causal);
  add("window", 96, 300, [](AttentionCase& c) { c.problem.mask.window_left = 50; });
  add("full", 128, 300, [](AttentionCase& c) { c.problem.seq_q = 130; });
  add("documents", 128, 300, documents);
  // As if the whole problem had so many key heads that blocks need not divide the heads of a group.
  add("group", 128, 500, [&](AttentionCase& c) {
    causal(c);
    c.problem.heads_q = 8;
    c.problem.heads_kv = 2;
    c.problem.whole = {.sequences = 512, .heads = 2};
  });
  // Seven blocks that divide 13 heads: one has a head less than the others.
  const auto uneven_parts = [&](AttentionCase& c, std::int64_t sequences) {
    causal(c);
    c.problem.heads_q = 13;
    c.problem.whole = {.sequences = sequences, .heads = 1};
  };
  add("uneven_parts", 64, 150, [&](AttentionCase& c) { uneven_parts(c, 95); });
  add("uneven_parts", 192, 150, [&](AttentionCase& c) { uneven_parts(c, 60); });
  add("uneven_parts_softcap", 128, 150, [&](AttentionCase& c) {
    uneven_parts(c, 95);
    c.problem.softcap = 3;
  });
  add("dilated", 128, 256, [&](AttentionCase& c) { dilated(c, {{64, 2}}); });
  add("dilated_lists", 128, 211, [&](AttentionCase& c) { dilated(c, {{50, 3}}); });
  const auto blocks = [](AttentionCase& c) {
    c.problem.mask.block_rows = c.problem.mask.block_columns = 64;
    c.problem.mask.max_blocks_per_row = 2;
  };
  const auto capped_blocks = [&](AttentionCase& c) {
    blocks(c);
    c.problem.softcap = 3;
  };
  add("blocks", 128, 256, blocks);
  add("uneven_parts_blocks", 128, 150, [&](AttentionCase& c) {
    uneven_parts(c, 95);
    blocks(c);
  });
  add("capped_blocks", 192, 256, capped_blocks);
  add("capped_blocks", 256, 256, capped_blocks);
  add("causal", 192, 200, causal);
  add("causal", 256, 200, causal);
  add("free_order", 256, 200, [](AttentionCase& c) {
    c.problem.deterministic = false;
    c.problem.dtype = DType::f16;
  });
  // Chunks that see all, a part and nothing of their keys; outputs in f32, so that dO is rounded first.
  const auto chunk = [](AttentionCase& c, std::int64_t query_start, std::int64_t key_start) {
    c.problem.chunk = AttentionChunk{.query_start = query_start, .key_start = key_start};
    c.problem.output_dtype = DType::f32;
  };
  add("chunk_causal", 64, 300, [&](AttentionCase& c) {
    causal(c);
    chunk(c, 100, 130);
  });
  add("chunk_window", 96, 300, [&](AttentionCase& c) {
    c.problem.mask.window_left = 50;
    chunk(c, 200, 0);
  });
  add("chunk_of_one_key_head", 128, 200, [&](AttentionCase& c) {
    causal(c);
    chunk(c, 200, 0);
  });
  add("chunk_documents", 128, 150, [&](AttentionCase& c) {
    causal(c);
    c.document_lengths = {100, 1, 0, 199};
    c.problem.mask.max_documents = 4;
    chunk(c, 130, 60);
  });
  add("chunk_dilated", 128, 211, [&](AttentionCase& c) {
    dilated(c, {{50, 3}});
    chunk(c, 100, 33);
  });
  add("chunk_blocks", 128, 256, [&](AttentionCase& c) {
    capped_blocks(c);
    causal(c);
    chunk(c, 64, 0);
  });
  add("chunk_causal", 256, 200, [&](AttentionCase& c) {
    causal(c);
    chunk(c, 30, 60);
  });
  const auto add_f32 = [&](const std::string& name, std::int64_t head_dim, std::int64_t seq, auto change) {
    add("f32_" + name, head_dim, seq, change);
    cases.back().c.problem.dtype = DType::f32;
  };
  add_f32("causal", 64, 300, causal);
  add_f32("softcap_sinks", 64, 260, [](AttentionCase& c) {
    c.problem.softcap = 3;
    c.problem.sinks = true;
    c.problem.deterministic = false;
  });
  add_f32("documents", 128, 300, documents);
  add_f32("mixed_dilation", 128, 211, [&](AttentionCase& c) {
    dilated(c, {{50, 3}, {200, 7}});
    c.problem.mask.mix_dilations = true;
  });
  add_f32("blocks", 128, 256, blocks);
  return cases;
}

}  // namespace headroom
