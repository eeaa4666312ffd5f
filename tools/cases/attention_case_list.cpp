// The cases that every implementation of attention is held to.
#include <algorithm>
#include <array>
#include <numeric>

#include "attention_cases.h"

namespace headroom {
namespace {

Mask window(std::int64_t left, std::int64_t right, bool causal = false) {
  Mask mask;
  mask.causal = causal;
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}

Mask causal() {
  return window(Mask::kUnlimited, Mask::kUnlimited, true);
}

std::string describe(const Mask& mask) {
  std::string text = mask.causal ? "causal" : "full";
  if (mask.window_left != Mask::kUnlimited) text += fmt::format(" left {}", mask.window_left);
  if (mask.window_right != Mask::kUnlimited) text += fmt::format(" right {}", mask.window_right);
  for (int i = 0; i < mask.dilation_count; ++i) {
    const Dilation& dilation = mask.dilations[static_cast<std::size_t>(i)];
    text +=
        fmt::format(" {}{}/{}", mask.mix_dilations ? "mixed " : "dilated ", dilation.segment, dilation.rate);
  }
  if (mask.detach_mixing) text += " detached";
  if (mask.block_rows > 0) text += fmt::format(" blocks {}x{}", mask.block_rows, mask.block_columns);
  return text;
}

class CaseList {
 public:
  void add(const std::string& group, const AttentionProblem& problem,
           std::vector<std::int64_t> documents = {}) {
    AttentionCase added{
        .group = group, .name = {}, .problem = problem, .document_lengths = std::move(documents)};
    added.problem.mask.max_documents = static_cast<std::int64_t>(added.document_lengths.size());
    added.name = fmt::format("{} b{} {}x{} h{}/{} d{} {}", name(problem.dtype), problem.batch, problem.seq_q,
                             problem.seq_k, problem.heads_q, problem.heads_kv, problem.head_dim,
                             describe(problem.mask));
    if (problem.softcap != 0) added.name += " softcap";
    if (problem.sinks) added.name += " sinks";
    if (!added.document_lengths.empty())
      added.name += fmt::format(" documents {}", added.document_lengths.size());
    if (problem.chunk) {
      added.name += fmt::format(" queries from {} keys from {}", problem.query_start(), problem.key_start());
    }
    if (problem.output_dtype) added.name += fmt::format(" output {}", name(problem.dtype_of_output()));
    cases_.push_back(std::move(added));
  }
  AttentionCase& last() { return cases_.back(); }
  [[nodiscard]] std::vector<AttentionCase> so_far() const { return cases_; }
  std::vector<AttentionCase> take() { return std::move(cases_); }

 private:
  std::vector<AttentionCase> cases_;
};

AttentionProblem sized(std::int64_t seq_q, std::int64_t seq_k, std::int64_t head_dim, DType dtype,
                       const Mask& mask) {
  return {.batch = 1,
          .seq_q = seq_q,
          .seq_k = seq_k,
          .heads_q = 1,
          .heads_kv = 1,
          .head_dim = head_dim,
          .dtype = dtype,
          .mask = mask};
}

constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};

void add_sizes(CaseList& list) {
  const std::array masks = {Mask{}, causal(), window(7, 0, true), window(3, 5), window(40, Mask::kUnlimited)};
  const std::array<std::pair<std::int64_t, std::int64_t>, 13> sizes = {{{1, 1},
                                                                        {1, 239},
                                                                        {3, 799},
                                                                        {113, 203},
                                                                        {97, 97},
                                                                        {192, 192},
                                                                        {193, 385},
                                                                        {128, 256},
                                                                        {5, 3},
                                                                        {200, 60},
                                                                        {0, 5},
                                                                        {5, 0},
                                                                        {300, 300}}};
  for (const auto& [seq_q, seq_k] : sizes) {
    for (const Mask& mask : masks) {
      for (const DType dtype : kDTypes) list.add("sizes", sized(seq_q, seq_k, 16, dtype, mask));
    }
  }
  for (const Mask& mask : {Mask{}, causal(), window(100, 0, true)}) {
    list.add("large", sized(1023, 1024, 8, DType::f32, mask));
  }
  list.add("large", sized(4224, 4224, 8, DType::f32, causal()));
  list.add("large", sized(4224, 4224, 16, DType::bf16, window(300, 0, true)));
}

void add_head_dims(CaseList& list) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    list.add("head sizes", sized(70, 130, head_dim, DType::f32, causal()));
    list.add("head sizes", sized(101, 67, head_dim, head_dim % 16 == 0 ? DType::bf16 : DType::f16, Mask{}));
  }
}

void add_heads(CaseList& list) {
  const std::array<std::pair<std::int64_t, std::int64_t>, 4> heads = {{{8, 1}, {8, 2}, {6, 3}, {4, 4}}};
  for (const auto& [heads_q, heads_kv] : heads) {
    for (const Mask& mask : {Mask{}, causal()}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        AttentionProblem problem = sized(75, 75, 32, dtype, mask);
        problem.batch = 2;
        problem.heads_q = heads_q;
        problem.heads_kv = heads_kv;
        list.add("grouped heads", problem);
        list.add("strided", problem);
        list.last().strided = true;
      }
    }
  }
}

void add_documents(CaseList& list) {
  const std::vector<std::vector<std::int64_t>> lengths = {
      {1}, {200}, {0, 5, 0}, {1, 1, 1, 1}, {100, 1, 0, 57, 42}, {3, 0, 0, 190, 7}};
  for (const auto& documents : lengths) {
    const std::int64_t tokens = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
    for (const Mask& mask : {Mask{}, causal(), window(9, 0, true)}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        AttentionProblem problem = sized(tokens, tokens, 24, dtype, mask);
        problem.batch = 2;
        problem.heads_q = 2;
        list.add("documents", problem, documents);
      }
    }
  }
}

void add_padded_documents(CaseList& list) {
  for (const Mask& mask : {Mask{}, causal(), window(20, 0, true)}) {
    for (const DType dtype : kDTypes) {
      AttentionProblem problem = sized(160, 160, 32, dtype, mask);
      problem.heads_q = 2;
      problem.sinks = dtype == DType::bf16;
      list.add("padded documents", problem, {50, 0, 71, 1});
    }
  }
}

void add_options(CaseList& list) {
  for (const float softcap : {0.0F, 3.0F}) {
    for (const bool sinks : {false, true}) {
      for (const bool lse_gradient : {false, true}) {
        for (const Mask& mask : {Mask{}, causal(), window(2, 0, true)}) {
          for (const DType dtype : {DType::f32, DType::bf16}) {
            AttentionProblem problem = sized(90, 90, 40, dtype, mask);
            problem.heads_q = 2;
            problem.softcap = softcap;
            problem.sinks = sinks;
            problem.scale = 0.3F;
            list.add("options", problem);
            list.last().lse_gradient = lse_gradient;
          }
        }
      }
    }
  }
  // Scores far apart: the running maximum moves, probabilities underflow.
  for (const DType dtype : kDTypes) {
    list.add("peaked", sized(150, 400, 64, dtype, causal()));
    list.last().spread = 6;
  }
  // In key tiles too that every row sees whole. Query 128 sees nothing of the tile before them.
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const Mask& mask : {Mask{}, causal()}) {
      list.add("peaked", sized(430, 429, head_dim, mask.causal ? DType::f16 : DType::bf16, mask));
      list.last().spread = 6;
    }
  }
}

void add_dilated(CaseList& list) {
  const std::vector<std::vector<Dilation>> patterns = {{{16, 2}}, {{64, 4}},  {{50, 3}},
                                                       {{64, 1}}, {{500, 5}}, {{32, 1}, {128, 4}}};
  for (const std::vector<Dilation>& pattern : patterns) {
    for (const bool is_causal : {false, true}) {
      for (const int documents : {0, 1}) {
        AttentionProblem problem =
            sized(211, 211, 16, documents == 1 ? DType::f32 : DType::bf16, is_causal ? causal() : Mask{});
        problem.heads_q = 4;
        problem.heads_kv = 2;
        problem.mask.dilation_count = static_cast<int>(pattern.size());
        std::copy(pattern.begin(), pattern.end(), problem.mask.dilations.begin());
        list.add("dilated", problem,
                 documents == 1 ? std::vector<std::int64_t>{70, 0, 1, 140} : std::vector<std::int64_t>{});
        if (pattern.size() < 2) continue;
        problem.mask.mix_dilations = true;
        list.add("mixed dilation", problem);
        problem.mask.detach_mixing = true;
        list.add("mixed dilation", problem);
      }
    }
  }
  // With everything else: sinks, a gradient through LSE, a softcap, a window, strides, documents.
  for (const DType dtype : kDTypes) {
    for (const bool mixed : {false, true}) {
      AttentionProblem problem = sized(150, 150, 24, dtype, window(60, 0, true));
      problem.batch = 2;
      problem.heads_q = 4;
      problem.heads_kv = 2;
      problem.sinks = true;
      problem.softcap = mixed ? 0.0F : 4.0F;
      problem.mask.dilations = {Dilation{40, 1}, Dilation{110, 3}};
      problem.mask.dilation_count = 2;
      problem.mask.mix_dilations = mixed;
      list.add(mixed ? "mixed dilation" : "dilated", problem, {60, 1, 0, 80, 9});
      list.last().lse_gradient = true;
      list.last().strided = true;
      if (!mixed) continue;
      problem.sinks = false;
      problem.mask.detach_mixing = true;
      list.add("mixed dilation", problem, {60, 1, 0, 80, 9});
      list.last().lse_gradient = true;
    }
  }
}

void add_blocks(CaseList& list) {
  for (const auto& [rows, columns] : {std::pair{16, 32}, std::pair{128, 64}, std::pair{7, 5}}) {
    for (const bool is_causal : {false, true}) {
      AttentionProblem problem =
          sized(210, 260, 32, is_causal ? DType::f32 : DType::bf16, is_causal ? causal() : Mask{});
      problem.heads_q = 2;
      problem.mask.block_rows = rows;
      problem.mask.block_columns = columns;
      problem.mask.max_blocks_per_row = 4;
      list.add("block-sparse", problem);
      problem.mask.window_left = 100;
      problem.sinks = true;
      problem.heads_q = 4;
      problem.heads_kv = 2;
      list.add("block-sparse", problem);
      list.last().lse_gradient = true;
      problem.seq_k = problem.seq_q;
      list.add("block-sparse", problem, {130, 0, 80});
    }
  }
}

// In the dtypes of tensor cores, at every head size: blocks that are whole tiles, and blocks that cross them.
void add_blocks_in_16_bits(CaseList& list) {
  for (const std::int64_t head_dim : {64, 80, 128, 192, 256}) {
    for (const bool crosses : {false, true}) {
      AttentionProblem problem =
          sized(300, 390, head_dim, crosses ? DType::f16 : DType::bf16, crosses ? causal() : Mask{});
      problem.heads_q = 2;
      problem.mask.block_rows = crosses ? 40 : 128;
      problem.mask.block_columns = crosses ? 50 : 128;
      problem.mask.max_blocks_per_row = crosses ? 5 : 2;
      problem.softcap = crosses == (head_dim % 128 == 0) ? 5.0F : 0.0F;
      list.add("block-sparse", problem);
    }
  }
}

// What was listed with small heads in f32, again with larger ones, which other kernels serve: all that has
// dilations, blocks or strides, of the rest every fourth.
void add_larger_heads(CaseList& list) {
  constexpr std::array<std::int64_t, 4> kHeadDims = {48, 64, 104, 128};
  constexpr std::int64_t kSmall = 40;
  std::size_t seen = 0;
  std::size_t added = 0;
  for (const AttentionCase& c : list.so_far()) {
    if (c.problem.dtype != DType::f32 || c.problem.head_dim >= kSmall || c.group == "large") continue;
    const bool special = c.problem.mask.dilation_count > 0 || c.problem.mask.block_rows > 0 || c.strided;
    if (++seen % 4 != 0 && !special) continue;
    AttentionProblem problem = c.problem;
    problem.head_dim = kHeadDims[added++ % kHeadDims.size()];
    list.add(c.group, problem, c.document_lengths);
    list.last().lse_gradient = c.lse_gradient;
    list.last().strided = c.strided;
    list.last().odd = c.strided && added % 2 == 0;
  }
  list.add("large", sized(1023, 1024, 64, DType::f32, causal()));
}

// Dilation where rows follow the last document: they are one more document, with segments of its own.
void add_padded_dilation(CaseList& list) {
  const std::vector<std::vector<Dilation>> patterns = {{{16, 2}}, {{50, 3}}, {{7, 9}}, {{32, 1}, {128, 4}}};
  for (const std::vector<Dilation>& pattern : patterns) {
    for (const bool is_causal : {false, true}) {
      AttentionProblem problem = sized(160, 160, is_causal ? 64 : 16, is_causal ? DType::f32 : DType::bf16,
                                       is_causal ? causal() : Mask{});
      problem.batch = 2;
      problem.heads_q = 4;
      problem.heads_kv = 2;
      problem.mask.dilation_count = static_cast<int>(pattern.size());
      std::copy(pattern.begin(), pattern.end(), problem.mask.dilations.begin());
      list.add("padded dilation", problem, {50, 0, 71, 1});
      if (pattern.size() < 2) continue;
      problem.mask.mix_dilations = true;
      list.add("padded dilation", problem, {50, 0, 71, 1});
    }
  }
}

// Blocks one row over a tile of queries: the tiles that a block is cut into are not equal.
void add_uneven_blocks(CaseList& list) {
  for (const std::int64_t rows : {65, 129}) {
    for (const auto& [head_dim, dtype] : {std::pair{32, DType::f32}, std::pair{64, DType::f32},
                                          std::pair{64, DType::bf16}, std::pair{128, DType::f16}}) {
      const bool is_causal = dtype != DType::bf16;
      AttentionProblem problem = sized(200, 260, head_dim, dtype, is_causal ? causal() : Mask{});
      problem.heads_q = 2;
      problem.mask.block_rows = rows;
      problem.mask.block_columns = head_dim == 32 ? 50 : 64;
      problem.mask.max_blocks_per_row = 3;
      list.add("uneven blocks", problem);
    }
  }
}

// Kernels for Hopper divide a group's heads among blocks where there are few tiles of keys. Here are so many
// that they do not, or by a part of the group; and windows that are shorter than the sequence by several
// tiles.
void add_groups_of_many_tiles(CaseList& list) {
  const auto grouped = [](AttentionProblem problem, std::int64_t batch, std::int64_t heads_q,
                          std::int64_t heads_kv) {
    problem.batch = batch;
    problem.heads_q = heads_q;
    problem.heads_kv = heads_kv;
    return problem;
  };
  list.add("many tiles", grouped(sized(130, 130, 8, DType::bf16, causal()), 128, 4, 1));
  list.add("many tiles", grouped(sized(130, 130, 8, DType::f16, Mask{}), 80, 16, 1));
  list.add("many tiles", grouped(sized(400, 400, 72, DType::bf16, window(99, 0, true)), 48, 4, 1));
  list.add("many tiles", grouped(sized(300, 300, 136, DType::bf16, window(70, 30)), 40, 2, 1));
  AttentionProblem capped = sized(700, 700, 16, DType::bf16, window(99, 0, true));
  capped.softcap = 4.0F;
  list.add("many tiles", grouped(capped, 2, 3, 1));
  list.add("many tiles", grouped(sized(700, 700, 200, DType::bf16, window(99, 0, true)), 1, 2, 1));
}

// In f32: kernels that copy 16 bytes at a time refuse such views of 16-bit types.
void add_odd_strides(CaseList& list) {
  const std::array<std::pair<std::int64_t, std::int64_t>, 4> heads = {{{8, 1}, {8, 2}, {6, 3}, {4, 4}}};
  for (const auto& [heads_q, heads_kv] : heads) {
    for (const std::int64_t head_dim : {24, 64}) {
      AttentionProblem problem = sized(75, 75, head_dim, DType::f32, head_dim == 24 ? causal() : Mask{});
      problem.batch = 2;
      problem.heads_q = heads_q;
      problem.heads_kv = heads_kv;
      if (heads_q == 4) problem.mask.dilations[0] = {30, 2};
      problem.mask.dilation_count = heads_q == 4 ? 1 : 0;
      list.add("odd strides", problem);
      list.last().strided = true;
      list.last().odd = true;
    }
  }
}

// Chunks of a sequence of 300: queries behind all keys, among them, and before the first that they see; so
// that documents and segments begin before, inside and after the chunks.
constexpr std::array<AttentionChunk, 5> kChunks = {{{200, 60}, {100, 100}, {70, 130}, {0, 201}, {170, 3}}};

AttentionProblem chunk_of(const AttentionProblem& problem, std::size_t n) {
  AttentionProblem chunk = problem;
  chunk.chunk = kChunks[n % kChunks.size()];
  if (n % 2 == 1) chunk.output_dtype = DType::f32;
  return chunk;
}

void add_chunks(CaseList& list) {
  const std::vector<Mask> masks = {Mask{}, causal(), window(30, 0, true), window(40, 25)};
  std::size_t n = 0;
  for (const Mask& mask : masks) {
    for (std::size_t i = 0; i < kChunks.size(); ++i, ++n) {
      AttentionProblem problem = sized(97, 83, n % 3 == 0 ? 64 : 24, kDTypes[n % kDTypes.size()], mask);
      problem.heads_q = 2;
      problem.sinks = n % 4 == 1;
      problem.softcap = n % 4 == 2 ? 4.0F : 0.0F;
      list.add("chunks", chunk_of(problem, i));
      list.last().lse_gradient = n % 2 == 0;
      problem.batch = 2;
      list.add("chunks", chunk_of(problem, i + 1), {60, 0, 45, 90, 1});
      list.last().strided = n % 2 == 0;
    }
  }
}

void add_dilated_chunks(CaseList& list) {
  const std::vector<std::vector<Dilation>> patterns = {{{16, 2}}, {{50, 3}}, {{7, 9}}, {{32, 1}, {128, 4}}};
  std::size_t n = 0;
  for (const std::vector<Dilation>& pattern : patterns) {
    for (std::size_t i = 0; i < kChunks.size(); ++i, ++n) {
      AttentionProblem problem =
          sized(97, 83, n % 3 == 0 ? 64 : 16, kDTypes[n % kDTypes.size()], n % 2 == 0 ? causal() : Mask{});
      problem.heads_q = 4;
      problem.heads_kv = 2;
      problem.sinks = n % 4 == 1;
      problem.mask.dilation_count = static_cast<int>(pattern.size());
      std::copy(pattern.begin(), pattern.end(), problem.mask.dilations.begin());
      problem.mask.mix_dilations = pattern.size() > 1 && i % 2 == 0;
      list.add("chunks", chunk_of(problem, i));
      list.last().lse_gradient = true;
      list.add("chunks", chunk_of(problem, i + 1), {60, 0, 45, 90, 1});
    }
  }
}

// Lists count rows and keys of the chunk, are shared by the heads of a group and, in strided cases, by
// sequences.
void add_block_chunks(CaseList& list) {
  for (std::size_t n = 0; n < kChunks.size(); ++n) {
    AttentionProblem problem = sized(97, 83, n % 2 == 0 ? 64 : 24, kDTypes[n % kDTypes.size()], causal());
    problem.batch = 2;
    problem.heads_q = 4;
    problem.heads_kv = 2;
    problem.mask.block_rows = 24;
    problem.mask.block_columns = 16;
    problem.mask.max_blocks_per_row = 3;
    list.add("chunks", problem);
    list.last().strided = true;
    list.add("chunks", chunk_of(problem, n));
    list.last().strided = n % 2 == 0;
  }
}

// The last queries of a sequence with documents or dilation, and outputs in f32 of whole sequences.
void add_last_queries(CaseList& list) {
  for (const DType dtype : kDTypes) {
    AttentionProblem problem = sized(70, 160, 32, dtype, window(50, 0, true));
    problem.output_dtype = DType::f32;
    problem.heads_q = 2;
    list.add("chunks", problem);
    list.add("chunks", problem, {50, 0, 71, 1});
    problem.mask.dilations[0] = {20, 3};
    problem.mask.dilation_count = 1;
    list.add("chunks", problem);
    list.add("chunks", problem, {50, 0, 71, 1});
    problem = sized(90, 90, 16, dtype, Mask{});
    problem.output_dtype = DType::f32;
    problem.heads_q = 2;
    problem.mask.dilations = {Dilation{30, 1}, Dilation{80, 3}};
    problem.mask.dilation_count = 2;
    problem.mask.mix_dilations = true;
    list.add("chunks", problem);
    problem.mask.detach_mixing = true;
    list.add("chunks", problem);
  }
}

}  // namespace

std::vector<AttentionCase> attention_cases() {
  CaseList list;
  add_sizes(list);
  add_head_dims(list);
  add_heads(list);
  add_documents(list);
  add_padded_documents(list);
  add_options(list);
  add_dilated(list);
  add_blocks(list);
  add_blocks_in_16_bits(list);
  add_larger_heads(list);
  add_padded_dilation(list);
  add_uneven_blocks(list);
  add_groups_of_many_tiles(list);
  add_odd_strides(list);
  add_chunks(list);
  add_dilated_chunks(list);
  add_block_chunks(list);
  add_last_queries(list);
  std::vector<AttentionCase> cases = list.take();
  for (AttentionCase& c : cases) {
    if (c.odd) c.problem.row_alignment_bytes = size_bytes(c.problem.dtype);
  }
  return cases;
}

}  // namespace headroom
