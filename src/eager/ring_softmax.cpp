// One rank's work on one chunk of keys in ring attention, as it is often written: the scores of the chunk as
// a tensor, online softmax over it in eager operators. No graph is kept: the state is updated in place.
#include <algorithm>
#include <array>
#include <utility>

#include "eager/program.h"
#include "headroom/eager.h"

namespace headroom {
namespace {

// The lines of the program, and their texts.
enum Line : std::uint8_t {
  kState,
  kScores,
  kNewMax,
  kScaleSum,
  kAddToSum,
  kExpScores,
  kAddToOutput,
  kAddToSumInPlace,
  kAddToOutputInPlace,
};
constexpr std::array<std::string_view, 9> kTexts = {
    "state",
    "scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d)",
    "new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))",
    "running_sum.mul_(torch.exp(running_max - new_max))",
    "running_sum.add_(torch.exp(scores - new_max).sum(dim=-1, keepdim=True))",
    "exp_scores = torch.exp(scores - new_max)",
    "output.add_(torch.matmul(exp_scores, v))",
    "running_sum.add_(scores.sub_(new_max).exp_().sum(dim=-1, keepdim=True))",
    "output.add_(torch.matmul(scores, v))",
};

class Chunk {
 public:
  Chunk(EagerProgram& program, const RingSoftmax& ring) : program_(program), ring_(ring) {}

  void run() {
    Tensor query, key, value, output, running_max, running_sum;
    {
      const auto stage = line(kState);
      query = inputs("q", ring_.seq_q);
      key = inputs("k", ring_.seq_k);
      value = inputs("v", ring_.seq_k);
      output = inputs("output", ring_.seq_q);
      running_max = row("running_max");
      running_sum = row("running_sum");
    }
    {
      const auto stage = line(kScores);
      program_.product_in_forward();
      const Tensor product = scores("matmul(q, k^T)", ring_.seq_k);
      scores_ = scores("scores", ring_.seq_k);
    }
    Tensor new_max;
    {
      const auto stage = line(kNewMax);
      const Tensor chunk_max = row("amax");
      new_max = row("new_max");
    }
    {
      const auto stage = line(kScaleSum);
      const Tensor difference = row("running_max - new_max");
      const Tensor scale = row("exp");
    }
    switch (ring_.variant) {
      case RingSoftmax::Variant::as_written: accumulate_as_written(); break;
      case RingSoftmax::Variant::in_place: accumulate_in_place(); break;
      case RingSoftmax::Variant::chunked: accumulate_in_chunks(); break;
    }
  }

 private:
  [[nodiscard]] Context::OpenStage line(Line line) const {
    return program_.context().stage(StageKind::source_line, line);
  }
  [[nodiscard]] Tensor inputs(std::string_view name, std::int64_t tokens) const {
    return program_.make(name, Category::activations, ring_.dtype,
                         {ring_.batch, ring_.heads, tokens, ring_.head_dim});
  }
  [[nodiscard]] Tensor row(std::string_view name) const {
    return program_.make(name, Category::activations, ring_.dtype, {ring_.batch, ring_.heads, ring_.seq_q});
  }
  [[nodiscard]] Tensor scores(std::string_view name, std::int64_t columns) const {
    return program_.make(name, Category::attention, ring_.dtype,
                         {ring_.batch, ring_.heads, ring_.seq_q, columns});
  }

  void add_to_sum(std::int64_t columns) const {
    const auto stage = line(kAddToSum);
    Tensor difference = scores("scores - new_max", columns);
    Tensor exponential = scores("torch.exp(scores - new_max)", columns);
    drop(difference);
    const Tensor sum = row("sum");
  }
  void add_to_output(std::int64_t columns) const {
    Tensor exponential;
    {
      const auto stage = line(kExpScores);
      const Tensor difference = scores("scores - new_max", columns);
      exponential = scores("exp_scores", columns);
    }
    const auto stage = line(kAddToOutput);
    const Tensor product = inputs("matmul(exp_scores, v)", ring_.seq_q);
  }

  void accumulate_as_written() const {
    add_to_sum(ring_.seq_k);
    add_to_output(ring_.seq_k);
  }
  void accumulate_in_place() const {
    {
      const auto stage = line(kAddToSumInPlace);
      const Tensor sum = row("sum");
    }
    const auto stage = line(kAddToOutputInPlace);
    const Tensor product = inputs("matmul(scores, v)", ring_.seq_q);
  }
  void accumulate_in_chunks() const {
    for (std::int64_t first = 0; first < ring_.seq_k; first += ring_.chunk) {
      const std::int64_t columns = std::min(ring_.chunk, ring_.seq_k - first);
      add_to_sum(columns);
      add_to_output(columns);
    }
  }

  EagerProgram& program_;
  RingSoftmax ring_;
  Tensor scores_;
};

}  // namespace

std::string_view ring_softmax_line(const StagePath& path) {
  check(path.depth() == 1 && path.stages()[0].kind == StageKind::source_line, "{} is no line of the program",
        path.text());
  return kTexts[static_cast<std::size_t>(path.stages()[0].index)];
}

Ledger rehearse_ring_softmax(const RingSoftmax& ring, const DeviceDescription& device) {
  check(
      ring.batch >= 1 && ring.heads >= 1 && ring.seq_q >= 1 && ring.seq_k >= 1 && ring.head_dim >= 1 &&
          ring.chunk >= 1,
      "a ring's chunk of batch {}, {} heads, {} queries, {} keys, head_dim {}, {} columns at a time is empty",
      ring.batch, ring.heads, ring.seq_q, ring.seq_k, ring.head_dim, ring.chunk);
  Context context(device);
  context.phase(Phase::step, [&] {
    EagerProgram program(context);
    Chunk(program, ring).run();
  });
  return std::move(context).take_ledger();
}

}  // namespace headroom
