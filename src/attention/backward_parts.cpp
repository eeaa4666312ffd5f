#include "attention/backward_parts.h"

namespace headroom {
namespace {

// What forward kept and open queries keep is not cut, and dSink is a sum over sequences.
bool sequences_are_apart(const AttentionProblem& problem, const AttentionImplementation& row) {
  return row.saved_bytes(problem) == 0 && !problem.open_queries && (!problem.sinks || problem.batch == 1);
}

// A head's dilated pattern, and its offset in it, follow from its number among all heads.
bool heads_are_alike(const AttentionProblem& problem) {
  return problem.mask.dilation_count == 0;
}

}  // namespace

BackwardParts BackwardParts::of(const AttentionProblem& problem, const AttentionImplementation& row,
                                const DeviceDescription& device) {
  const auto bytes_of = [&](const AttentionProblem& part) {
    return row.workspace_bytes(part, device, Pass::backward);
  };
  BackwardParts best{.problem = problem, .workspace_bytes = bytes_of(problem)};
  if (!sequences_are_apart(problem, row)) return best;
  const std::int64_t most_groups = heads_are_alike(problem) ? problem.heads_kv : 1;
  AttentionProblem part = problem;
  part.batch = 1;
  part.whole = {.sequences = problem.batch, .heads = problem.heads_kv};
  for (std::int64_t groups = 1; groups <= most_groups && best.workspace_bytes > problem.most_backward_bytes;
       ++groups) {
    if (problem.heads_kv % groups != 0) continue;
    part.heads_kv = problem.heads_kv / groups;
    part.heads_q = problem.heads_q / groups;
    const std::int64_t bytes = bytes_of(part);
    if (bytes < best.workspace_bytes && row.supports(part, device)) {
      best = {.problem = part, .count = problem.batch * groups, .workspace_bytes = bytes};
    }
  }
  return best;
}

AttentionBackward BackwardParts::views(const AttentionBackward& whole, std::int64_t part) const {
  if (count == 1) return whole;
  const std::int64_t groups = whole.forward.key.extent(2) / problem.heads_kv;
  const std::int64_t sequence = part / groups;
  const std::int64_t group = part % groups;
  // `of` tensors that the problem does not have are empty and stay so.
  const auto cut = [](const TensorView& of, int dimension, std::int64_t begin, std::int64_t extent) {
    return of.elements() == 0 ? of : of.slice(dimension, begin, extent);
  };
  const auto heads = [&](const TensorView& of, int dimension, std::int64_t extent) {
    return cut(cut(of, 0, sequence, 1), dimension, group * extent, extent);
  };
  const auto queries = [&](const TensorView& of) { return heads(of, 2, problem.heads_q); };
  const auto keys = [&](const TensorView& of) { return heads(of, 2, problem.heads_kv); };
  const auto statistics = [&](const TensorView& of) { return heads(of, 1, problem.heads_q); };
  const auto sinks = [&](const TensorView& of) {
    return cut(of, 0, group * problem.heads_q, problem.heads_q);
  };
  const AttentionForward& forward = whole.forward;
  return {.forward = {.query = queries(forward.query),
                      .key = keys(forward.key),
                      .value = keys(forward.value),
                      .sinks = sinks(forward.sinks),
                      .document_starts = cut(forward.document_starts, 0, sequence, 1),
                      .blocks = heads(forward.blocks, 1, problem.heads_kv),
                      .output = queries(forward.output),
                      .lse = statistics(forward.lse),
                      .saved = forward.saved},
          .output_gradient = queries(whole.output_gradient),
          .lse_gradient = statistics(whole.lse_gradient),
          .query_gradient = queries(whole.query_gradient),
          .key_gradient = keys(whole.key_gradient),
          .value_gradient = keys(whole.value_gradient),
          .sinks_gradient = sinks(whole.sinks_gradient)};
}

}  // namespace headroom
