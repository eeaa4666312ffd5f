// Attention of GPUs whose kernels run on the host (tests/cuda/on_host.h), and so reach its memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/chunks.h"
#include "attention/cuda/merge.h"
#include "attention/cuda/sequence.h"
#include "case_tools.h"
#include "headroom/attention.h"

namespace headroom {

// Runs chunks by the row that `row_of(problem)` picks. The device outlives the runner.
template <class RowOf>
ChunkRunner chunks_on_host(const DeviceDescription& device, const RowOf& row_of) {
  const Stream stream{.device = &device, .pool = nullptr, .poll = {}, .native = nullptr};
  const auto with_workspace = [&device, row_of](const AttentionProblem& problem, Pass pass, const auto& run) {
    const AttentionImplementation& row = row_of(problem);
    const Scratch workspace(row.workspace_bytes(problem, device, pass));
    run(row, workspace.view());
    EXPECT_TRUE(workspace.canaries_alive());
  };
  return {
      .supports =
          [=, &device](const AttentionProblem& problem) { return row_of(problem).supports(problem, device); },
      .saved_bytes = [=](const AttentionProblem& problem) { return row_of(problem).saved_bytes(problem); },
      .forward =
          [=](const AttentionProblem& problem, const AttentionForward& views) {
            with_workspace(problem, Pass::forward, [&](const auto& row, const TensorView& workspace) {
              row.forward(problem, views, workspace, stream);
            });
          },
      .backward =
          [=](const AttentionProblem& problem, const AttentionBackward& views) {
            with_workspace(problem, Pass::backward, [&](const auto& row, const TensorView& workspace) {
              row.backward(problem, views, workspace, stream);
            });
          },
      .merge =
          [=](const AttentionPartial& into, const AttentionPartial& from) {
            cuda::merge_partials(cuda::merge_call(into, from), stream);
          },
      .close =
          [=](const AttentionPartial& partial, const TensorView& row_sum, const TensorView& output) {
            cuda::close_partial(cuda::close_call(partial, row_sum, output), stream);
          }};
}

// Block lists that nobody should make: numbers behind the end of one, numbers that do not rise, numbers past
// the last block. Blocks wait for each other's turns all the same, and none waits for one that never comes.
inline void expect_no_list_waits_for_ever(const AttentionImplementation& row, DType dtype,
                                          std::int64_t head_dim, const DeviceDescription& device) {
  const Stream stream{.device = &device, .pool = nullptr, .poll = {}, .native = nullptr};
  AttentionProblem problem{.seq_q = 130, .seq_k = 640, .head_dim = head_dim, .dtype = dtype};
  problem.mask.block_rows = 65;
  problem.mask.block_columns = 64;
  problem.mask.max_blocks_per_row = 5;
  ASSERT_TRUE(row.supports(problem, device));
  for (std::vector<std::int32_t> lists :
       {std::vector{3, -1, 5, 7, 9, 0, 2, 4, 6, 8}, std::vector{4, 1, 6, 3, 8, 9, 7, 5, 3, 1},
        std::vector{2, 2'000'000'000, 3, -7, 4, 9, 9, 9, 0, 0}}) {
    const Shape queries{1, problem.seq_q, 1, head_dim};
    const Shape keys{1, problem.seq_k, 1, head_dim};
    Guarded query(dtype, queries, false);
    Guarded key(dtype, keys, false);
    query.fill_normal(Random(1), 1);
    key.fill_normal(Random(2), 1);
    const Guarded output(dtype, queries, false);
    const Guarded query_gradient(dtype, queries, false);
    const Guarded key_gradient(dtype, keys, false);
    const Guarded value_gradient(dtype, keys, false);
    const Guarded lse(DType::f32, {1, 1, problem.seq_q}, false);  // -inf where a row sees nothing
    const AttentionForward forward{.query = query.view(),
                                   .key = key.view(),
                                   .value = key.view(),
                                   .sinks = {},
                                   .document_starts = {},
                                   .blocks = TensorView(lists.data(), DType::i32, {1, 1, 2, 5}),
                                   .output = output.view(),
                                   .lse = lse.view(),
                                   .saved = {}};
    const Scratch workspace(std::max(row.workspace_bytes(problem, device, Pass::forward),
                                     row.workspace_bytes(problem, device, Pass::backward)));
    row.forward(problem, forward, workspace.view(), stream);
    row.backward(problem,
                 {.forward = forward,
                  .output_gradient = query.view(),
                  .lse_gradient = {},
                  .query_gradient = query_gradient.view(),
                  .key_gradient = key_gradient.view(),
                  .value_gradient = value_gradient.view(),
                  .sinks_gradient = {}},
                 workspace.view(), stream);
    for (const Guarded* made : {&output, &query_gradient, &key_gradient, &value_gradient}) {
      EXPECT_TRUE(std::ranges::all_of(made->values(), [](double x) { return std::isfinite(x); }));
      EXPECT_TRUE(made->canaries_alive());
    }
    EXPECT_TRUE(workspace.canaries_alive());
  }
}

}  // namespace headroom
