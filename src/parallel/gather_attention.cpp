#include "parallel/gather_attention.h"

#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

class GatherRank {
 public:
  GatherRank(Context& context, const ParallelSchedule& schedule, const RingForward& views)
      : context_(context), views_(views), whole_(schedule.problem()), problem_(whole_) {
    const int rank = context.ranks().rank;
    for (int r = 0; r < schedule.ranks(); ++r) {
      counts_.push_back(schedule.partition().tokens(r) * whole_.heads_kv * whole_.head_dim);
      if (r < rank) before_ += counts_.back();
    }
    const std::vector<Piece>& pieces = schedule.partition().pieces[static_cast<std::size_t>(rank)];
    if (!pieces.empty()) own_ = pieces[0];
    problem_.seq_q = own_.size();
    problem_.chunk = {.query_start = own_.begin, .key_start = 0};
    key_ = take("gathered K", whole_.dtype);
    value_ = take("gathered V", whole_.dtype);
    gather(key_, views.inputs.key);
    gather(value_, views.inputs.value);
  }

  void forward(std::string_view pinned) {
    if (!own_.empty()) attention_forward(context_, problem_, inputs(), pinned);
  }

  void backward(const RingBackward& views, std::string_view pinned) {
    const DType sums = whole_.dtype_of_sums();
    const Tensor key_gradient = take("gathered dK", sums);
    const Tensor value_gradient = take("gathered dV", sums);
    const Tensor query_gradient = context_.allocate({.name = "gathered dQ",
                                                     .category = Category::gradients,
                                                     .dtype = sums,
                                                     .shape = views.query_gradient.shape()});
    for (const Tensor* tensor : {&key_gradient, &value_gradient, &query_gradient}) zero(context_, *tensor);
    if (!own_.empty()) {
      AttentionProblem problem = problem_;
      problem.gradient_dtype = sums;
      AttentionBackward backward;
      backward.forward = inputs();
      backward.output_gradient = views.output_gradient;
      if (views.lse_gradient.elements() > 0) {
        backward.lse_gradient = views.lse_gradient.reshape(backward.forward.lse.shape());
      }
      backward.query_gradient = query_gradient;
      backward.key_gradient = key_gradient;
      backward.value_gradient = value_gradient;
      attention_backward(context_, problem, backward, pinned);
    }
    context_.reduce_scatter(key_gradient, counts_);
    context_.reduce_scatter(value_gradient, counts_);
    convert(context_, query_gradient, views.query_gradient);
    convert(context_, own_slice(key_gradient, views.key_gradient), views.key_gradient);
    convert(context_, own_slice(value_gradient, views.value_gradient), views.value_gradient);
  }

 private:
  [[nodiscard]] Tensor take(std::string_view name, DType dtype) const {
    return context_.allocate({.name = name,
                              .category = Category::communication,
                              .dtype = dtype,
                              .shape = {1, whole_.seq_k, whole_.heads_kv, whole_.head_dim}});
  }
  void gather(const Tensor& all, const Tensor& own) {
    context_.copy(StreamId::main, {all, before_, own.view().elements()}, {own, 0, own.view().elements()});
    context_.wait(StreamId::main, context_.all_gather(all, counts_));
  }
  [[nodiscard]] TensorView own_slice(const TensorView& all, const TensorView& own) const {
    return all.reshape({all.elements()}).slice(0, before_, own.elements()).reshape(own.shape());
  }
  [[nodiscard]] AttentionForward inputs() const {
    AttentionForward forward;
    forward.query = views_.inputs.query;
    forward.key = key_;
    forward.value = value_;
    forward.document_starts = views_.inputs.document_starts;
    forward.output = views_.output;
    forward.lse = views_.lse.reshape({1, whole_.heads_q, own_.size()});
    return forward;
  }

  Context& context_;
  const RingForward& views_;
  const AttentionProblem& whole_;
  AttentionProblem problem_;  // of the rank's queries and all keys
  Piece own_;
  std::vector<std::int64_t> counts_;  // [rank] elements of K
  std::int64_t before_ = 0;           // those of the ranks before this one
  Tensor key_, value_;
};

}  // namespace

Support gather_supports(const AttentionProblem& whole, const Partition& partition) {
  if (partition.kind != PartitionKind::contiguous || whole.batch != 1) {
    return Support::no("it takes one contiguous piece per rank and one sequence");
  }
  if (whole.mask.block_rows > 0 || whole.sinks) return Support::no("it takes no block lists and no sinks");
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
  const std::int64_t row = 2 * whole.heads_kv * whole.head_dim;
  const std::int64_t own = partition.tokens(rank);
  const std::int64_t gathered = (partition.ranks() - 1) * own * row * size_bytes(whole.dtype);
  if (pass == Pass::forward) return gathered;
  return gathered + (whole.seq_k - own) * row * size_bytes(whole.dtype_of_sums());
}

}  // namespace headroom
