#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include "headroom/attention.h"
#include "headroom/core/checked.h"

namespace headroom {

void validate(const AttentionProblem& problem) {
  check(problem.batch >= 0 && problem.seq_q >= 0 && problem.seq_k >= 0,
        "attention of batch {}, seq_q {}, seq_k {}: none may be negative", problem.batch, problem.seq_q,
        problem.seq_k);
  constexpr std::int64_t kMostRows =
      (std::int64_t{1} << 31) - 256;  // kernels count rows, and a tile more, in 32 bits
  check(problem.seq_q <= kMostRows && problem.seq_k <= kMostRows,
        "attention of seq_q {}, seq_k {}: at most {} are accepted", problem.seq_q, problem.seq_k, kMostRows);
  check(problem.heads_q > 0 && problem.heads_kv > 0 && problem.heads_q % problem.heads_kv == 0,
        "heads_q {} has to be a positive multiple of heads_kv {}", problem.heads_q, problem.heads_kv);
  check(problem.head_dim >= 8 && problem.head_dim <= 256 && problem.head_dim % 8 == 0,
        "head_dim {} is not a multiple of 8 from 8 to 256", problem.head_dim);
  check(problem.dtype == DType::f32 || problem.dtype == DType::bf16 || problem.dtype == DType::f16 ||
            problem.dtype == DType::f64,
        "attention takes f32, bf16, f16 or f64, not {}", name(problem.dtype));
  const DType sums = problem.dtype_of_sums();
  check(problem.dtype_of_output() == problem.dtype || problem.dtype_of_output() == sums,
        "the output of {} attention may be {} or {}, not {}", name(problem.dtype), name(problem.dtype),
        name(sums), name(problem.dtype_of_output()));
  check(problem.dtype_of_gradients() == problem.dtype || problem.dtype_of_gradients() == sums,
        "the gradients of {} attention may be {} or {}, not {}", name(problem.dtype), name(problem.dtype),
        name(sums), name(problem.dtype_of_gradients()));
  check(!problem.resume || problem.dtype_of_output() == sums,
        "attention resumes from an output in {}, not in {}", name(sums), name(problem.dtype_of_output()));
  check(!problem.add_gradients || problem.dtype_of_gradients() == sums,
        "attention adds to gradients in {}, not in {}", name(sums), name(problem.dtype_of_gradients()));
  check(!problem.open_queries || (problem.add_gradients && problem.seq_q > 0 && problem.seq_k > 0),
        "attention with open queries has queries and keys, and adds to the gradients of keys and values");
  check(!problem.resume || !problem.sinks,
        "sinks are part of the first chunk's softmax; a problem that resumes has none of its own");
  check(problem.scale >= 0 && std::isfinite(problem.scale), "scale {} is negative or not finite",
        problem.scale);
  check(problem.softcap >= 0 && std::isfinite(problem.softcap), "softcap {} is negative or not finite",
        problem.softcap);

  static_cast<void>(minimum_bytes(problem, Pass::backward));  // fits in 64 bits, and so do sums of its parts

  const Mask& mask = problem.mask;
  check(mask.window_left >= 0 && mask.window_right >= 0,
        "window of {} to the left and {} to the right is negative", mask.window_left, mask.window_right);
  check(mask.max_documents >= 0, "max_documents {} is negative", mask.max_documents);
  check(mask.dilation_count >= 0 && mask.dilation_count <= Mask::kMaxDilations,
        "{} dilation patterns were given; up to {} are possible", mask.dilation_count, Mask::kMaxDilations);
  for (int i = 0; i < mask.dilation_count; ++i) {
    const Dilation& dilation = mask.dilations[static_cast<std::size_t>(i)];
    check(dilation.segment > 0 && dilation.rate > 0, "dilation {}/{} needs a segment and a rate above zero",
          dilation.segment, dilation.rate);
  }
  check(mask.dilation_count == 0 || mask.mix_dilations || problem.heads_q % mask.dilation_count == 0,
        "{} query heads cannot be dealt to {} dilation patterns in equal groups", problem.heads_q,
        mask.dilation_count);
  const std::int64_t query_start = problem.query_start();
  const std::int64_t key_start = problem.key_start();
  // Sums and differences of positions and windows fit in 64 bits.
  constexpr std::int64_t kMostPosition = std::int64_t{1} << 60;
  check(!problem.chunk || (0 <= query_start && query_start <= kMostPosition && 0 <= key_start &&
                           key_start <= kMostPosition),
        "a chunk with queries from position {} and keys from position {}: both have to be from 0 to {}",
        query_start, key_start, kMostPosition);
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
  check(mask.block_rows == 0 || problem.seq_k <= kMostTokens,
        "documents and blocks are counted in 32 bits: seq_k {} is over {}", problem.seq_k, kMostTokens);
  check(mask.max_documents == 0 ||
            std::max(query_start + problem.seq_q, key_start + problem.seq_k) <= kMostTokens,
        "documents and blocks are counted in 32 bits: seq_q {} from position {} or seq_k {} from position {} "
        "ends over {}",
        problem.seq_q, query_start, problem.seq_k, key_start, kMostTokens);
  check((mask.max_documents == 0 && mask.dilation_count == 0) || query_start >= 0,
        "documents and dilation need every query to stand at a position: seq_q {} is over seq_k {}",
        problem.seq_q, problem.seq_k);
  check(!mask.mix_dilations || mask.dilation_count > 0, "mix_dilations is set and there are no dilations");
  check(!mask.detach_mixing || mask.mix_dilations,
        "detach_mixing is about mixed dilations, and none are mixed");
  check(!mask.detach_mixing || (!problem.chunk && problem.same_positions() && !problem.resume),
        "detach_mixing needs the output of every pattern over the whole sequence: it takes no chunks");
  const bool any_block = mask.block_rows != 0 || mask.block_columns != 0 || mask.max_blocks_per_row != 0;
  const bool all_block = mask.block_rows > 0 && mask.block_columns > 0 && mask.max_blocks_per_row > 0;
  check(any_block == all_block, "blocks of {} x {} with {} per row: all three have to be above zero, or none",
        mask.block_rows, mask.block_columns, mask.max_blocks_per_row);
}

namespace {

// Keys in front of a bound that moves with the query: the sum of clamp(i + shift, 0, keys) over i < queries.
std::int64_t keys_before(std::int64_t queries, std::int64_t shift, std::int64_t keys) {
  const std::int64_t first = std::clamp<std::int64_t>(-shift, 0, queries);           // sees one key
  const std::int64_t last = std::clamp<std::int64_t>(keys - shift, first, queries);  // sees them all
  const std::int64_t rising = checked_multiply(last - first, first + last - 1 + 2 * shift) / 2;
  return checked_add(rising, checked_multiply(queries - last, keys));
}

// Pairs that causal and window leave; query i stands at key i + shift.
std::int64_t interval_pairs(std::int64_t seq_q, std::int64_t seq_k, std::int64_t shift, std::int64_t left,
                            std::int64_t right) {
  const std::int64_t all = seq_q + seq_k + std::abs(shift);
  return keys_before(seq_q, shift + std::min(right, all) + 1, seq_k) -
         keys_before(seq_q, shift - std::min(left, all), seq_k);
}

// Pairs of one head under one dilation: in the rows that take part, one interval per segment.
double dilated_pairs(const AttentionProblem& problem, const Dilation& dilation, std::int64_t head) {
  const std::int64_t rate = dilation.rate;
  const std::int64_t offset = head % rate;
  const KeyRange queries{problem.query_start(), problem.query_start() + problem.seq_q};
  const KeyRange keys{problem.key_start(), problem.key_start() + problem.seq_k};
  // Those of a range that take part in segment n, counted from the segment's first.
  const auto taking_part = [&](KeyRange range, std::int64_t n) {
    const auto below = [&](std::int64_t position) {
      const std::int64_t rows =
          std::clamp<std::int64_t>(position - n * dilation.segment, 0, dilation.segment);
      return divide_up(std::max<std::int64_t>(rows - offset, 0), rate);
    };
    return KeyRange{below(range.begin), below(range.end)};
  };
  const auto within = [&](std::int64_t n) {
    const KeyRange q = taking_part(queries, n);
    const KeyRange k = taking_part(keys, n);
    return static_cast<double>(interval_pairs(q.size(), k.size(), q.begin - k.begin,
                                              problem.mask.window_left / rate,
                                              problem.mask.causal ? 0 : problem.mask.window_right / rate));
  };
  // The segments that have queries and keys. Those between the first and the last have all of both.
  const std::int64_t first = std::max(queries.begin, keys.begin) / dilation.segment;
  const std::int64_t last = (std::min(queries.end, keys.end) - 1) / dilation.segment;
  if (first > last) return 0;
  double pairs = within(first);
  if (last > first) pairs += within(last);
  if (last > first + 1) pairs += static_cast<double>(last - first - 1) * within(first + 1);
  return pairs;
}

}  // namespace

std::int64_t visible_pairs(const AttentionProblem& problem) {
  const Mask& mask = problem.mask;
  return interval_pairs(problem.seq_q, problem.seq_k, problem.query_start() - problem.key_start(),
                        mask.window_left, mask.causal ? 0 : mask.window_right);
}

double pairs_of_all_heads(const AttentionProblem& problem) {
  const Mask& mask = problem.mask;
  if (mask.dilation_count == 0) {
    return static_cast<double>(visible_pairs(problem)) * static_cast<double>(problem.heads_q);
  }
  const std::int64_t group = divide_up(problem.heads_q, mask.dilation_count);
  const int patterns = mask.patterns_per_head();
  std::vector<double> found;  // [head, pattern]
  for (std::int64_t head = 0; head < problem.heads_q; ++head) {
    const std::int64_t first =
        mask.mix_dilations ? 0 : head / group * group;  // head with this one's patterns
    for (int i = 0; i < patterns; ++i) {
      const std::int64_t pattern = mask.mix_dilations ? i : head / group;
      const Dilation& dilation = mask.dilations[static_cast<std::size_t>(pattern)];
      // Heads that leave the same remainder have the same pairs.
      const std::int64_t like = head - dilation.rate;
      found.push_back(like >= first ? found[static_cast<std::size_t>(like * patterns + i)]
                                    : dilated_pairs(problem, dilation, head));
    }
  }
  return std::accumulate(found.begin(), found.end(), 0.0);
}

double flops(const AttentionProblem& problem, Pass pass) {
  const double per_pair = (pass == Pass::forward ? 4.0 : 10.0) * static_cast<double>(problem.head_dim);
  return per_pair * pairs_of_all_heads(problem) * static_cast<double>(problem.batch);
}

std::int64_t minimum_bytes(const AttentionProblem& problem, Pass pass) {
  const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
  const std::int64_t query = dense_bytes(problem.dtype, rows);
  const std::int64_t output = dense_bytes(problem.dtype_of_output(), rows);
  const std::int64_t key =
      dense_bytes(problem.dtype, {problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim});
  const std::int64_t lse = dense_bytes(DType::f32, {problem.batch, problem.heads_q, problem.seq_q});
  // Forward reads Q, K, V and writes O, LSE; backward reads those and dO and writes dQ, dK, dV.
  const std::int64_t tensors = checked_add(checked_add(query, output), checked_multiply(2, key));
  const std::int64_t forward = checked_add(tensors, lse);
  return pass == Pass::forward ? forward : checked_add(forward, tensors);
}

}  // namespace headroom
