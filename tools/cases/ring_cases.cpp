#include "ring_cases.h"

#include <algorithm>

namespace headroom {
namespace {

struct Named {
  std::string group;
  AttentionCase attention;
};

AttentionCase sized(std::int64_t seq, std::int64_t heads_q, std::int64_t heads_kv) {
  AttentionCase c;
  c.problem = {.seq_q = seq, .seq_k = seq, .heads_q = heads_q, .heads_kv = heads_kv, .head_dim = 16};
  return c;
}

AttentionCase with_documents(AttentionCase c, std::vector<std::int64_t> lengths) {
  c.document_lengths = std::move(lengths);
  c.problem.mask.max_documents = std::ssize(c.document_lengths);
  return c;
}

AttentionCase dilated(AttentionCase c, const std::vector<Dilation>& patterns, bool mixed = false) {
  c.problem.mask.dilation_count = static_cast<int>(patterns.size());
  std::ranges::copy(patterns, c.problem.mask.dilations.begin());
  c.problem.mask.mix_dilations = mixed;
  return c;
}

AttentionCase causal(AttentionCase c, std::int64_t left = Mask::kUnlimited) {
  c.problem.mask.causal = true;
  c.problem.mask.window_left = left;
  return c;
}

// Every mask, at lengths that no number of ranks divides.
std::vector<Named> masks() {
  std::vector<Named> list;
  list.push_back({"full", sized(259, 4, 2)});
  list.push_back({"causal", causal(sized(149, 4, 1))});
  list.push_back({"window", causal(sized(173, 2, 2), 30)});
  AttentionCase both = sized(127, 2, 1);
  both.problem.mask.window_left = 11;
  both.problem.mask.window_right = 25;
  list.push_back({"window", both});
  list.push_back({"documents", with_documents(sized(151, 4, 2), {40, 0, 1, 70})});
  AttentionCase batch = with_documents(causal(sized(139, 4, 4)), {5, 64, 50, 20});
  batch.problem.batch = 2;
  list.push_back({"documents", batch});
  list.push_back({"documents", with_documents(causal(sized(163, 2, 1), 20), {90, 10, 63})});
  list.push_back({"dilated", dilated(sized(157, 4, 4), {{64, 4}})});
  list.push_back({"dilated", with_documents(causal(dilated(sized(167, 4, 2), {{50, 3}})), {70, 0, 60})});
  list.push_back({"dilated", dilated(causal(sized(137, 4, 2)), {{32, 1}, {140, 5}})});
  list.push_back({"mixed dilation", dilated(causal(sized(133, 4, 2)), {{32, 1}, {128, 4}}, true)});
  AttentionCase blocks = sized(192, 4, 2);
  blocks.problem.mask.block_rows = 8;
  blocks.problem.mask.block_columns = 4;
  blocks.problem.mask.max_blocks_per_row = 6;
  list.push_back({"blocks", blocks});
  list.push_back({"blocks", causal(blocks, 70)});
  AttentionCase options = causal(sized(141, 4, 2));
  options.problem.sinks = true;
  options.problem.softcap = 3;
  options.lse_gradient = true;
  list.push_back({"sinks and softcap", options});
  AttentionCase few = causal(sized(3, 2, 1));
  few.problem.sinks = true;
  list.push_back({"fewer tokens than ranks", few});
  return list;
}

// Heads of every size that kernels are made for, in chunks of several of their tiles. Without a group, dK and
// dV are added to where they are; with one, blocks may divide it.
std::vector<Named> larger_heads() {
  std::vector<Named> list;
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    AttentionCase c =
        causal(sized(453, 2, head_dim % 64 == 0 ? 2 : 1), head_dim == 64 ? 150 : Mask::kUnlimited);
    c.problem.head_dim = head_dim;
    list.push_back({"larger heads", c});
  }
  AttentionCase capped = sized(389, 4, 1);
  capped.problem.head_dim = 128;
  capped.problem.softcap = 3;
  capped.problem.sinks = true;
  list.push_back({"larger heads", capped});
  return list;
}

// With eight heads, which two and four ranks can divide: all of them, or those of a group.
std::vector<Named> masks_over_heads() {
  std::vector<Named> list;
  list.push_back({"full", sized(131, 8, 4)});
  list.push_back({"causal", causal(sized(97, 8, 4), 50)});
  AttentionCase documents = with_documents(causal(sized(151, 8, 8)), {40, 0, 1, 70});
  documents.problem.batch = 2;
  documents.problem.sinks = true;
  documents.lse_gradient = true;
  list.push_back({"documents", documents});
  list.push_back({"dilated", dilated(sized(157, 8, 4), {{64, 2}})});
  list.push_back({"mixed dilation", dilated(causal(sized(133, 8, 4)), {{32, 1}, {128, 2}}, true)});
  return list;
}

}  // namespace

std::string RingCase::name() const {
  const AttentionProblem& p = attention.problem;
  const std::string groups = group == 0 ? "" : fmt::format(" in groups of {}", group);
  return fmt::format("{} b{} {} h{}/{} d{} on {} ranks{}, {}", headroom::name(p.dtype), p.batch, p.seq_k,
                     p.heads_q, p.heads_kv, p.head_dim, ranks, groups, headroom::name(partition));
}

ParallelSchedule RingCase::schedule(const AttentionForward& whole) const {
  const AttentionProblem& problem = attention.problem;
  return {way, problem, whole, make_partition(partition, ranks, problem, whole), group};
}

std::vector<RingCase> ring_cases() {
  std::vector<RingCase> cases;
  const auto add = [&](const Named& named, DType dtype, int ranks, AttentionWay way, PartitionKind partition,
                       int group = 0) {
    RingCase added{
        .attention = named.attention, .ranks = ranks, .partition = partition, .way = way, .group = group};
    added.attention.problem.dtype = dtype;
    added.attention.group = named.group;
    added.attention.name = added.name();
    cases.push_back(std::move(added));
  };
  const auto next_partition = [&] { return static_cast<PartitionKind>(cases.size() % 3); };
  for (const Named& named : masks()) {
    for (const int ranks : {1, 2, 3, 4, 5, 8, 16}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        add(named, dtype, ranks, AttentionWay::ring, next_partition());
      }
    }
  }
  for (const Named& named : masks_over_heads()) {
    for (const int ranks : {2, 4}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        add({"heads, " + named.group, named.attention}, dtype, ranks, AttentionWay::heads, next_partition());
      }
    }
    for (const auto& [ranks, group] : {std::pair(4, 2), std::pair(8, 2), std::pair(8, 4), std::pair(16, 4)}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        add({"product, " + named.group, named.attention}, dtype, ranks, AttentionWay::product,
            next_partition(), group);
      }
    }
  }
  for (const int ranks : {2, 3}) {
    AttentionCase gathered = causal(sized(131, 4, 2));
    gathered.problem.sinks = true;
    gathered.lse_gradient = ranks == 2;
    add({"allgather", gathered}, DType::f32, ranks, AttentionWay::gather, PartitionKind::contiguous);
  }
  for (const Named& named : larger_heads()) {
    add(named, DType::bf16, 2, AttentionWay::ring, PartitionKind::contiguous);
    add(named, DType::f16, 3, AttentionWay::ring, PartitionKind::zigzag);
  }
  return cases;
}

AttentionErrors run_ring_case(const RingCase& c, const MakeBackend& backend_of, std::string_view pinned) {
  return run_attention_case(
      c.attention,
      [&](const AttentionBackward& whole) {
        const ParallelSchedule schedule = c.schedule(whole.forward);
        on_thread_ranks(c.ranks, {}, [&](Communicator& communicator) {
          run_ring_rank(schedule, whole, communicator, *backend_of(communicator.ranks().rank), pinned);
        });
      },
      1);
}

AttentionErrors run_ring_case(const RingCase& c, Communicator& communicator, Backend& backend,
                              std::string_view pinned) {
  return run_attention_case(
      c.attention,
      [&](const AttentionBackward& whole) {
        const ParallelSchedule schedule = c.schedule(whole.forward);
        run_ring_rank(schedule, whole, communicator, backend, pinned);
      },
      1, Writes::its_part);
}

}  // namespace headroom
