// Backward in parts: fewer bytes, the same bits.
#include "attention/backward_parts.h"

#include "headroom/plan/catalogue.h"
#include "ops/cases.h"

namespace headroom {
namespace {

struct Gradients {
  Values query, key, value, sinks;

  bool operator==(const Gradients&) const = default;
};

// Forward and backward of random inputs on the backend under test, with documents and blocks where the
// problem has them.
Gradients gradients_of(const AttentionProblem& problem, std::string_view row, std::int64_t& workspace_bytes) {
  Gradients gradients;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
      const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
      const Shape statistics{problem.batch, problem.heads_q, problem.seq_q};
      const auto random = [&](const Shape& shape, DType dtype, std::uint64_t seed) {
        return Placed(context, shape, dtype, random_values(shape.elements(), dtype, seed));
      };
      const Placed query = random(rows, problem.dtype, 1);
      const Placed key = random(keys, problem.dtype, 2);
      const Placed value = random(keys, problem.dtype, 3);
      const Placed output_gradient = random(rows, problem.dtype, 4);
      const Placed lse_gradient = random(statistics, DType::f32, 5);
      const Placed sinks = random({problem.heads_q}, DType::f32, 6);
      const Mask& mask = problem.mask;
      // Sequence b has documents of b + 9, b + 9 and the rest; every row of blocks lists the first and one
      // more.
      std::vector<std::int32_t> starts;
      for (std::int64_t b = 0; b < problem.batch && mask.max_documents > 0; ++b) {
        for (std::int64_t d = 0; d <= mask.max_documents; ++d) {
          starts.push_back(static_cast<std::int32_t>(d == mask.max_documents ? problem.seq_k : d * (b + 9)));
        }
      }
      const std::int64_t tiles = mask.block_rows > 0 ? problem.seq_q / mask.block_rows : 0;
      std::vector<std::int32_t> blocks;
      for (std::int64_t i = 0; i < problem.batch * problem.heads_kv * tiles; ++i) {
        blocks.push_back(0);
        blocks.push_back(static_cast<std::int32_t>(1 + i % 2));
      }
      const PlacedIds document_starts(context, starts);
      const PlacedIds listed(context, blocks);
      const auto shaped = [](const TensorView& ids, const Shape& shape) {
        return ids.elements() == 0 ? TensorView() : ids.reshape(shape);
      };
      const Placed output(context, rows, problem.dtype), query_gradient(context, rows, problem.dtype);
      const Placed key_gradient(context, keys, problem.dtype), value_gradient(context, keys, problem.dtype);
      const Placed lse(context, statistics, DType::f32),
          sinks_gradient(context, {problem.heads_q}, DType::f32);
      const AttentionForward forward{
          .query = query.view,
          .key = key.view,
          .value = value.view,
          .sinks = problem.sinks ? sinks.view : TensorView(),
          .document_starts = shaped(document_starts, {problem.batch, mask.max_documents + 1}),
          .blocks = shaped(listed, {problem.batch, problem.heads_kv, tiles, 2}),
          .output = output.view,
          .lse = lse.view,
          .saved = {}};
      attention_forward(context, problem, forward, row);
      attention_backward(context, problem,
                         {.forward = forward,
                          .output_gradient = output_gradient.view,
                          .lse_gradient = lse_gradient.view,
                          .query_gradient = query_gradient.view,
                          .key_gradient = key_gradient.view,
                          .value_gradient = value_gradient.view,
                          .sinks_gradient = problem.sinks ? sinks_gradient.view : TensorView()},
                         row);
      gradients = {query_gradient.read(context), key_gradient.read(context), value_gradient.read(context),
                   problem.sinks ? sinks_gradient.read(context) : Values()};
    });
  };
  const std::unique_ptr<Backend> backend = backend_under_test(2);
  Context context(*backend, rehearse(program, backend->description()));
  program(context);
  for (const WorkRecord& record : context.work(Phase::step)) {
    if (record.work.kernel == "attention backward") workspace_bytes = record.work.workspace_bytes;
  }
  return gradients;
}

TEST(BackwardParts, HaveTheBitsOfTheWholeInLessWorkspace) {
  AttentionProblem grouped{.batch = 1,
                           .seq_q = 96,
                           .seq_k = 96,
                           .heads_q = 6,
                           .heads_kv = 3,
                           .head_dim = 32,
                           .mask = {.causal = true}};
  AttentionProblem sinks = grouped;
  sinks.sinks = true;
  AttentionProblem documents = grouped;
  documents.batch = 2;
  documents.mask.max_documents = 3;
  AttentionProblem blocks = documents;
  blocks.mask.max_documents = 0;
  blocks.mask.block_rows = blocks.mask.block_columns = 32;
  blocks.mask.max_blocks_per_row = 2;
  AttentionProblem dilated = documents;
  dilated.mask = {.causal = true};
  dilated.mask.dilations[0] = {.segment = 48, .rate = 2};
  dilated.mask.dilation_count = 1;
  const DeviceDescription device = backend_under_test(2)->description();
  int cut = 0;
  for (AttentionProblem problem : {grouped, sinks, documents, blocks, dilated}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      problem.dtype = dtype;
      for (const AttentionImplementation& row : attention_implementations()) {
        if (!row.supports(problem, device) || row.saved_bytes(problem) > 0) continue;
        std::int64_t whole_bytes = 0;
        std::int64_t parts_bytes = 0;
        problem.most_backward_bytes = std::numeric_limits<std::int64_t>::max();
        const Gradients whole = gradients_of(problem, row.name, whole_bytes);
        problem.most_backward_bytes = 0;
        const Gradients parts = gradients_of(problem, row.name, parts_bytes);
        EXPECT_EQ(parts, whole) << row.name << " " << name(dtype);
        EXPECT_LE(parts_bytes, whole_bytes) << row.name;
        cut += parts_bytes < whole_bytes ? 1 : 0;
      }
    }
  }
  EXPECT_GE(cut, 5);
}

TEST(BackwardParts, AreAsFewAsFit) {
  const DeviceDescription h200 = find_in_catalogue("h200").device;
  AttentionProblem problem{.batch = 1,
                           .seq_q = 1'048'576,
                           .seq_k = 1'048'576,
                           .heads_q = 32,
                           .heads_kv = 8,
                           .head_dim = 128,
                           .dtype = DType::bf16,
                           .mask = {.causal = true}};
  const auto parts = [&] {
    return BackwardParts::of(problem, pick(attention_implementations(), problem, h200, {}, "attention"),
                             h200);
  };
  EXPECT_EQ(parts().count, 1);
  const std::int64_t whole = parts().workspace_bytes;
  problem.most_backward_bytes = whole / 3;
  EXPECT_EQ(parts().count, 4);
  EXPECT_EQ(parts().problem.heads_kv, 2);
  EXPECT_EQ(parts().problem.heads_q, 8);
  EXPECT_NEAR(static_cast<double>(parts().workspace_bytes), static_cast<double>(whole) / 4, 1e6);
  problem.most_backward_bytes = 0;
  EXPECT_EQ(parts().count, 8);
  problem.batch = 3;
  EXPECT_EQ(parts().count, 24);
  problem.most_backward_bytes = whole;
  EXPECT_EQ(parts().count, 3);
  problem.mask.dilations[0] = {.segment = 4096, .rate = 2};
  problem.mask.dilation_count = 1;
  problem.most_backward_bytes = 0;
  EXPECT_EQ(parts().count, 3);  // a head's pattern follows from its number
  problem.sinks = true;
  EXPECT_EQ(parts().count, 1);  // dSink is a sum over sequences
}

}  // namespace
}  // namespace headroom
