#include "parallel/gather_attention.h"

#include <numeric>

#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

class GatherRank {
 public:
  GatherRank(Context& context, const ParallelSchedule& schedule, const RingForward& views)
      : context_(context),
        views_(views),
        whole_(schedule.problem()),
        rank_(static_cast<std::size_t>(context.ranks().rank)) {
    check(context.ranks().count == schedule.ranks(), "the schedule is for {} ranks, and there are {}",
          schedule.ranks(), context.ranks().count);
    for (int r = 0; r < schedule.ranks(); ++r) tokens_.push_back(schedule.partition().tokens(r));
    begin_ = std::accumulate(tokens_.begin(), tokens_.begin() + context.ranks().rank, std::int64_t{0});
    query_ = gather_rows("gathered Q", views.inputs.query);
    key_ = gather_rows("gathered K", views.inputs.key);
    value_ = gather_rows("gathered V", views.inputs.value);
  }

  void forward(std::string_view pinned) {
    output_ = take("whole output", whole_.dtype_of_output(), rows(whole_.heads_q));
    lse_ = take("whole lse", whole_.dtype_of_sums(), {1, whole_.heads_q, whole_.seq_q});
    attention_forward(context_, whole_, inputs(), pinned);
    keep_rows(output_, views_.output);
    for_each_head(rank_, begin_, views_.lse, lse_,
                  [&](const TensorView& own, const TensorView& all) { convert(context_, all, own); });
  }

  void backward(const RingBackward& views, std::string_view pinned) {
    output_ = gather_rows("gathered output", views_.output);
    lse_ = gather_lse("gathered lse", views_.lse);
    const Tensor output_gradient = gather_rows("gathered dO", views.output_gradient);
    Tensor lse_gradient;
    if (views.lse_gradient.elements() > 0) lse_gradient = gather_lse("gathered dLSE", views.lse_gradient);
    const DType dtype = whole_.dtype_of_gradients();
    const Tensor query_gradient = take("whole dQ", dtype, rows(whole_.heads_q));
    const Tensor key_gradient = take("whole dK", dtype, rows(whole_.heads_kv));
    const Tensor value_gradient = take("whole dV", dtype, rows(whole_.heads_kv));
    AttentionBackward backward;
    backward.forward = inputs();
    backward.output_gradient = output_gradient;
    if (views.lse_gradient.elements() > 0) backward.lse_gradient = lse_gradient;
    backward.query_gradient = query_gradient;
    backward.key_gradient = key_gradient;
    backward.value_gradient = value_gradient;
    backward.sinks_gradient = views.sinks_gradient;
    attention_backward(context_, whole_, backward, pinned);
    keep_rows(query_gradient, views.query_gradient);
    keep_rows(key_gradient, views.key_gradient);
    keep_rows(value_gradient, views.value_gradient);
  }

 private:
  [[nodiscard]] Shape rows(std::int64_t heads) const { return {1, whole_.seq_k, heads, whole_.head_dim}; }
  [[nodiscard]] Tensor take(std::string_view name, DType dtype, const Shape& shape) const {
    return context_.allocate(
        {.name = name, .category = Category::communication, .dtype = dtype, .shape = shape});
  }

  // [1, seq, heads, head_dim] of all ranks. `token` elements belong to a token.
  [[nodiscard]] Tensor gather(std::string_view name, const TensorView& own, const Shape& shape,
                              std::int64_t token) const {
    Tensor all = take(name, own.dtype(), shape);
    std::vector<std::int64_t> counts;
    for (const std::int64_t tokens : tokens_) counts.push_back(tokens * token);
    if (own.elements() > 0) {
      const TensorView flat = all.view().reshape({shape.elements()});
      convert(context_, own.reshape({own.elements()}), flat.slice(0, begin_ * token, own.elements()));
    }
    context_.wait(StreamId::main, context_.all_gather(all, counts));
    return all;
  }
  [[nodiscard]] Tensor gather_rows(std::string_view name, const TensorView& own) const {
    return gather(name, own, rows(own.extent(2)), own.extent(2) * whole_.head_dim);
  }
  // [1, heads_q, seq] of all ranks, from the [heads_q, tokens] of each.
  [[nodiscard]] Tensor gather_lse(std::string_view name, const TensorView& own) const {
    const Shape shape{1, whole_.heads_q, whole_.seq_q};
    const Tensor slices = gather(name, own, {shape.elements()}, whole_.heads_q);
    Tensor all = take(name, own.dtype(), shape);
    std::int64_t begin = 0;
    for (std::size_t r = 0; r < tokens_.size(); ++r) {
      const std::int64_t elements = tokens_[r] * whole_.heads_q;
      for_each_head(r, begin, slices.view().slice(0, begin * whole_.heads_q, elements), all,
                    [&](const TensorView& of_rank, const TensorView& to) { convert(context_, of_rank, to); });
      begin += tokens_[r];
    }
    return all;
  }

  // body(a head's lse of a rank's tokens, the same part of the lse of all tokens)
  template <class Body>
  void for_each_head(std::size_t rank, std::int64_t begin, const TensorView& of_rank, const TensorView& all,
                     const Body& body) const {
    const std::int64_t tokens = tokens_[rank];
    if (tokens == 0) return;
    const TensorView flat = all.reshape({all.elements()});
    for (std::int64_t h = 0; h < whole_.heads_q; ++h) {
      body(of_rank.slice(0, h * tokens, tokens), flat.slice(0, h * whole_.seq_q + begin, tokens));
    }
  }
  void keep_rows(const TensorView& all, const TensorView& own) const {
    if (own.elements() == 0) return;
    convert(context_, all.slice(1, begin_, own.extent(1)).merge(2).merge(0), own.merge(2).merge(0));
  }

  [[nodiscard]] AttentionForward inputs() const {
    AttentionForward forward;
    forward.query = query_;
    forward.key = key_;
    forward.value = value_;
    forward.sinks = views_.inputs.sinks;
    forward.document_starts = views_.inputs.document_starts;
    forward.output = output_;
    forward.lse = lse_;
    return forward;
  }

  Context& context_;
  const RingForward& views_;
  const AttentionProblem& whole_;
  std::size_t rank_;
  std::vector<std::int64_t> tokens_;  // [rank]
  std::int64_t begin_ = 0;            // tokens of the ranks before this one
  Tensor query_, key_, value_, output_, lse_;
};

}  // namespace

Support gather_supports(const AttentionProblem& whole, const Partition& partition) {
  if (partition.kind != PartitionKind::contiguous || whole.batch != 1) {
    return Support::no("it takes one contiguous piece per rank and one sequence");
  }
  if (whole.mask.block_rows > 0) return Support::no("block lists of other ranks' queries are not exchanged");
  return Support::yes();
}

void gather_attention_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                              std::string_view pinned) {
  GatherRank(context, schedule, views).forward(pinned);
}

void gather_attention_backward(Context& context, const ParallelSchedule& schedule, const RingBackward& views,
                               std::string_view pinned) {
  GatherRank(context, schedule, views.forward).backward(views, pinned);
}

std::int64_t gather_sent_bytes(const AttentionProblem& whole, const Partition& partition, int rank,
                               Pass pass) {
  const std::int64_t sent = (partition.ranks() - 1) * partition.tokens(rank);  // tokens
  const std::int64_t inputs = (whole.heads_q + 2 * whole.heads_kv) * whole.head_dim * size_bytes(whole.dtype);
  if (pass == Pass::forward) return sent * inputs;
  const std::int64_t output = whole.heads_q * whole.head_dim * size_bytes(whole.dtype_of_output());
  const std::int64_t lse = whole.heads_q * size_bytes(whole.dtype_of_sums());
  return sent * (inputs + 2 * output + lse);
}

}  // namespace headroom
