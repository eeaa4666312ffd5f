#include "headroom/parallel/head_parallel.h"

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "headroom/core/checked.h"
#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

// One tensor in both forms.
struct HeadTensor {
  TensorView tokens;  // of the rank's tokens and all heads: [batch, tokens, heads, head_dim]; lse as the
                      // ring has it
  TensorView heads;   // of all tokens and the rank's heads: [batch, seq, heads / ranks, head_dim]; lse as
                      // attention has it
  bool statistics = false;  // lse or its gradient
};

// Moves tensors between the two forms. All of a call have one dtype.
class HeadExchange {
 public:
  HeadExchange(Context& context, const RingSchedule& schedule)
      : context_(context), schedule_(schedule), ranks_(context.ranks()) {
    check(ranks_.count == schedule.ranks(), "the schedule is for {} ranks, and there are {}",
          schedule.ranks(), ranks_.count);
    check(context.description().kind == DeviceKind::cpu,
          "heads are divided over ranks on the CPU only so far");
  }

  void to_heads(std::span<const HeadTensor> tensors) { move(tensors, true); }
  void to_tokens(std::span<const HeadTensor> tensors) { move(tensors, false); }

 private:
  void move(std::span<const HeadTensor> tensors, bool to_heads) {
    // Rank p gets rows of these tokens and heads from this rank, and gives those.
    const auto sent = [&](int p) { return to_heads ? Slice{ranks_.rank, p} : Slice{p, ranks_.rank}; };
    const auto received = [&](int p) { return to_heads ? Slice{p, ranks_.rank} : Slice{ranks_.rank, p}; };
    std::vector<std::int64_t> from_counts;
    std::vector<std::int64_t> to_counts;
    for (int p = 0; p < ranks_.count; ++p) {
      from_counts.push_back(elements(tensors, sent(p)));
      to_counts.push_back(elements(tensors, received(p)));
    }
    const DType dtype = tensors[0].tokens.dtype();
    const Tensor from = take("all-to-all, sent", dtype, from_counts);
    const Tensor to = take("all-to-all, received", dtype, to_counts);
    copy_rows(tensors, from, sent, to_heads);
    context_.wait(StreamId::main, context_.all_to_all(to, to_counts, from, from_counts));
    copy_rows(tensors, to, received, !to_heads, true);
  }

  // The rows of one rank's tokens and another's heads.
  struct Slice {
    int tokens = 0;
    int heads = 0;
  };
  [[nodiscard]] std::int64_t heads_of(const HeadTensor& tensor) const {
    return tensor.statistics ? schedule_.problem().heads_q / ranks_.count
                             : tensor.tokens.extent(2) / ranks_.count;
  }
  [[nodiscard]] static std::int64_t width(const HeadTensor& tensor) {
    return tensor.statistics ? 1 : tensor.tokens.extent(3);
  }
  [[nodiscard]] std::int64_t elements(std::span<const HeadTensor> tensors, const Slice& slice) const {
    std::int64_t sum = 0;
    for (const HeadTensor& tensor : tensors) {
      sum += schedule_.problem().batch * schedule_.partition().tokens(slice.tokens) * heads_of(tensor) *
             width(tensor);
    }
    return sum;
  }
  [[nodiscard]] Tensor take(std::string_view name, DType dtype,
                            const std::vector<std::int64_t>& counts) const {
    return context_.allocate({.name = name,
                              .category = Category::communication,
                              .dtype = dtype,
                              .shape = {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}});
  }

  // Packs the slices of all ranks one after the other, or unpacks them.
  template <class SliceOf>
  void copy_rows(std::span<const HeadTensor> tensors, const Tensor& packed, const SliceOf& slice_of,
                 bool token_side, bool unpack = false) const {
    const Work work{.kernel = unpack ? "heads unpack" : "heads pack",
                    .bytes = 2 * static_cast<double>(packed.view().bytes())};
    context_.run(work, [&](const Stream&) {
      std::int64_t at = 0;  // elements
      for (int p = 0; p < ranks_.count; ++p) {
        for (const HeadTensor& tensor : tensors) {
          copy_slice(tensor, slice_of(p), token_side, unpack, static_cast<std::byte*>(packed.view().raw()),
                     at);
        }
      }
    });
  }
  void copy_slice(const HeadTensor& tensor, const Slice& slice, bool token_side, bool unpack,
                  std::byte* packed, std::int64_t& at) const {
    const AttentionProblem& problem = schedule_.problem();
    const std::int64_t heads = heads_of(tensor);
    const std::int64_t element = size_bytes(tensor.tokens.dtype());
    const TensorView& view = token_side ? tensor.tokens : tensor.heads;
    auto* memory = static_cast<std::byte*>(view.raw());
    std::int64_t before = 0;
    for (const Piece& piece : schedule_.partition().pieces[static_cast<std::size_t>(slice.tokens)]) {
      for (std::int64_t row = 0; row < problem.batch * piece.size(); ++row) {
        const std::int64_t b = row / piece.size();
        const std::int64_t i = row % piece.size();
        for (std::int64_t n = 0; n < heads; ++n) {
          const std::int64_t h = token_side ? slice.heads * heads + n : n;
          std::int64_t offset = 0;
          if (!tensor.statistics) {
            offset = view.offset(b, token_side ? before + i : piece.begin + i, h);
          } else if (token_side) {
            offset = problem.batch * problem.heads_q * before + (b * problem.heads_q + h) * piece.size() + i;
          } else {
            offset = view.offset(b, h, piece.begin + i);
          }
          const auto bytes = static_cast<std::size_t>(width(tensor) * element);
          std::byte* there = packed + at * element;
          std::byte* here = memory + offset * element;
          std::memcpy(unpack ? here : there, unpack ? there : here, bytes);
          at += width(tensor);
        }
      }
      before += piece.size();
    }
  }

  Context& context_;
  const RingSchedule& schedule_;
  Ranks ranks_;
};

// Attention of the rank's heads over the whole sequence.
class HeadRank {
 public:
  HeadRank(Context& context, const RingSchedule& schedule, const RingForward& views)
      : context_(context),
        views_(views),
        exchange_(context, schedule),
        rank_(context.ranks().rank),
        problem_(schedule.problem()) {
    const Support support = head_parallel_supports(schedule);
    check(bool{support}, "heads cannot be divided over {} ranks: {}", schedule.ranks(), support.reason());
    problem_.heads_q /= schedule.ranks();
    problem_.heads_kv /= schedule.ranks();
    query_ = take("heads Q", problem_.dtype, problem_.heads_q);
    key_ = take("heads K", problem_.dtype, problem_.heads_kv);
    value_ = take("heads V", problem_.dtype, problem_.heads_kv);
    output_ = take("heads output", problem_.dtype_of_output(), problem_.heads_q);
    lse_ = take_lse("heads lse");
  }

  void forward(std::string_view pinned) {
    exchange_.to_heads(std::array{HeadTensor{views_.inputs.query, query_},
                                  HeadTensor{views_.inputs.key, key_},
                                  HeadTensor{views_.inputs.value, value_}});
    attention_forward(context_, problem_, inputs(), pinned);
    exchange_.to_tokens(std::array{HeadTensor{views_.output, output_}});
    exchange_.to_tokens(std::array{HeadTensor{views_.lse, lse_, true}});
  }

  void backward(const RingBackward& views, std::string_view pinned) {
    const bool through_lse = views.lse_gradient.elements() > 0;
    const Tensor output_gradient = take("heads dO", problem_.dtype_of_output(), problem_.heads_q);
    const Tensor lse_gradient = through_lse ? take_lse("heads dLSE") : Tensor{};
    const Tensor query_gradient = take("heads dQ", problem_.dtype_of_gradients(), problem_.heads_q);
    const Tensor key_gradient = take("heads dK", problem_.dtype_of_gradients(), problem_.heads_kv);
    const Tensor value_gradient = take("heads dV", problem_.dtype_of_gradients(), problem_.heads_kv);
    const std::int64_t all_heads = problem_.heads_q * context_.ranks().count;
    const Tensor sinks_gradient = take_sinks(problem_.sinks ? all_heads : 0);
    exchange_.to_heads(std::array{HeadTensor{views_.inputs.query, query_},
                                  HeadTensor{views_.inputs.key, key_},
                                  HeadTensor{views_.inputs.value, value_}});
    exchange_.to_heads(
        std::array{HeadTensor{views_.output, output_}, HeadTensor{views.output_gradient, output_gradient}});
    exchange_.to_heads(std::array{HeadTensor{views_.lse, lse_, true}});
    if (through_lse) exchange_.to_heads(std::array{HeadTensor{views.lse_gradient, lse_gradient, true}});
    AttentionBackward backward;
    backward.forward = inputs();
    backward.output_gradient = output_gradient;
    if (through_lse) backward.lse_gradient = lse_gradient;
    backward.query_gradient = query_gradient;
    backward.key_gradient = key_gradient;
    backward.value_gradient = value_gradient;
    if (problem_.sinks) {
      zero(context_, sinks_gradient);
      backward.sinks_gradient = own_heads(sinks_gradient);
    }
    attention_backward(context_, problem_, backward, pinned);
    exchange_.to_tokens(std::array{HeadTensor{views.query_gradient, query_gradient},
                                   HeadTensor{views.key_gradient, key_gradient},
                                   HeadTensor{views.value_gradient, value_gradient}});
    if (!problem_.sinks) return;
    context_.all_reduce(sinks_gradient);  // other ranks have zeros for this rank's heads
    convert(context_, sinks_gradient, views.sinks_gradient);
  }

 private:
  [[nodiscard]] Tensor take(std::string_view name, DType dtype, std::int64_t heads) const {
    return context_.allocate({.name = name,
                              .category = Category::attention,
                              .dtype = dtype,
                              .shape = {problem_.batch, problem_.seq_k, heads, problem_.head_dim}});
  }
  [[nodiscard]] Tensor take_lse(std::string_view name) const {
    return context_.allocate({.name = name,
                              .category = Category::attention,
                              .dtype = problem_.dtype_of_sums(),
                              .shape = {problem_.batch, problem_.heads_q, problem_.seq_q}});
  }
  [[nodiscard]] Tensor take_sinks(std::int64_t heads) const {
    return context_.allocate(
        {.name = "heads dSink", .category = Category::gradients, .dtype = DType::f32, .shape = {heads}});
  }
  [[nodiscard]] TensorView own_heads(const TensorView& sinks) const {
    return sinks.slice(0, rank_ * problem_.heads_q, problem_.heads_q);
  }
  [[nodiscard]] AttentionForward inputs() const {
    AttentionForward forward;
    forward.query = query_;
    forward.key = key_;
    forward.value = value_;
    if (problem_.sinks) forward.sinks = own_heads(views_.inputs.sinks);
    forward.document_starts = views_.inputs.document_starts;
    forward.output = output_;
    forward.lse = lse_;
    return forward;
  }

  Context& context_;
  const RingForward& views_;
  HeadExchange exchange_;
  int rank_;
  AttentionProblem problem_;  // of the rank's heads
  Tensor query_, key_, value_, output_, lse_;
};

}  // namespace

Support head_parallel_supports(const RingSchedule& schedule) {
  const AttentionProblem& problem = schedule.problem();
  const int ranks = schedule.ranks();
  if (problem.heads_q % ranks != 0 || problem.heads_kv % ranks != 0) {
    return Support::no(
        fmt::format("{} query heads and {} K/V heads cannot be dealt to {} ranks in equal parts",
                    problem.heads_q, problem.heads_kv, ranks));
  }
  const Mask& mask = problem.mask;
  if (mask.block_rows > 0) return Support::no("block lists of other ranks' queries are not exchanged");
  if (mask.dilation_count > 1 && !mask.mix_dilations) {
    return Support::no("groups of heads with their own dilation are not dealt to ranks");
  }
  for (int i = 0; i < mask.dilation_count; ++i) {
    const std::int64_t rate = mask.dilations[static_cast<std::size_t>(i)].rate;
    if (problem.heads_q / ranks % rate != 0) {
      return Support::no(fmt::format("{} heads of a rank do not have every offset of dilation rate {}",
                                     problem.heads_q / ranks, rate));
    }
  }
  return Support::yes();
}

void head_parallel_forward(Context& context, const RingSchedule& schedule, const RingForward& views,
                           std::string_view pinned) {
  HeadRank(context, schedule, views).forward(pinned);
}

void head_parallel_backward(Context& context, const RingSchedule& schedule, const RingBackward& views,
                            std::string_view pinned) {
  HeadRank(context, schedule, views.forward).backward(views, pinned);
}

std::int64_t head_parallel_sent_bytes(const RingSchedule& schedule, int rank, Pass pass) {
  const AttentionProblem& problem = schedule.problem();
  const int ranks = schedule.ranks();
  const std::int64_t heads_q = problem.heads_q / ranks;
  const std::int64_t heads_kv = problem.heads_kv / ranks;
  const std::int64_t own = problem.batch * schedule.partition().tokens(rank);
  const std::int64_t others = problem.batch * problem.seq_k - own;
  // Of a token that goes to one other rank.
  const auto row_bytes = [&](std::int64_t heads, DType dtype) {
    return checked_multiply(heads * problem.head_dim, size_bytes(dtype));
  };
  const std::int64_t lse = heads_q * size_bytes(problem.dtype_of_sums());
  const std::int64_t inputs = row_bytes(heads_q + 2 * heads_kv, problem.dtype);
  const std::int64_t output = row_bytes(heads_q, problem.dtype_of_output());
  if (pass == Pass::forward) return own * (ranks - 1) * inputs + others * (output + lse);
  const std::int64_t sinks =
      problem.sinks ? all_reduce_traffic({rank, ranks}, problem.heads_q * size_bytes(DType::f32)).sent_bytes
                    : 0;
  return own * (ranks - 1) * (inputs + 2 * output + lse) +
         others * row_bytes(heads_q + 2 * heads_kv, problem.dtype_of_gradients()) + sinks;
}

}  // namespace headroom
