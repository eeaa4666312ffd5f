#include "parallel/head_groups.h"

#include <array>

#include "headroom/core/checked.h"
#include "parallel/head_exchange.h"

namespace headroom {
namespace {

// The ring of the rank's heads over the tokens of its group.
class HeadRank {
 public:
  HeadRank(Context& context, const ParallelSchedule& schedule, const RingForward& views)
      : context_(context),
        schedule_(schedule),
        views_(views),
        exchange_(context, schedule),
        member_(context.ranks().rank % schedule.group()),
        tokens_(
            schedule.ring().partition().tokens(context.ranks().rank % schedule.ranks() / schedule.group())),
        problem_(schedule.ring().problem()),
        query_(take("heads Q", problem_.dtype, problem_.heads_q)),
        key_(take("heads K", problem_.dtype, problem_.heads_kv)),
        value_(take("heads V", problem_.dtype, problem_.heads_kv)),
        output_(take("heads output", problem_.dtype_of_output(), problem_.heads_q)),
        lse_(take_lse("heads lse")) {}

  void forward(std::string_view pinned) {
    inputs_to_heads();
    ring_attention_forward(context_, schedule_.ring(), views_of_heads(), pinned, schedule_.group());
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
    inputs_to_heads();
    exchange_.to_heads(
        std::array{HeadTensor{views_.output, output_}, HeadTensor{views.output_gradient, output_gradient}});
    exchange_.to_heads(std::array{HeadTensor{views_.lse, lse_, true}});
    if (through_lse) exchange_.to_heads(std::array{HeadTensor{views.lse_gradient, lse_gradient, true}});
    ring_attention_backward(context_, schedule_.ring(),
                            {.forward = views_of_heads(),
                             .output_gradient = output_gradient,
                             .lse_gradient = through_lse ? lse_gradient.view() : TensorView{},
                             .query_gradient = query_gradient,
                             .key_gradient = key_gradient,
                             .value_gradient = value_gradient,
                             .sinks_gradient = views.sinks_gradient},
                            pinned, schedule_.group());
    exchange_.to_tokens(std::array{HeadTensor{views.query_gradient, query_gradient},
                                   HeadTensor{views.key_gradient, key_gradient},
                                   HeadTensor{views.value_gradient, value_gradient}});
  }

 private:
  [[nodiscard]] Tensor take(std::string_view name, DType dtype, std::int64_t heads) const {
    return context_.allocate({.name = name,
                              .category = Category::attention,
                              .dtype = dtype,
                              .shape = {problem_.batch, tokens_, heads, problem_.head_dim}});
  }
  [[nodiscard]] Tensor take_lse(std::string_view name) const {
    return context_.allocate({.name = name,
                              .category = Category::attention,
                              .dtype = problem_.dtype_of_sums(),
                              .shape = {problem_.batch * problem_.heads_q * tokens_}});
  }
  void inputs_to_heads() {
    exchange_.to_heads(std::array{HeadTensor{views_.inputs.query, query_},
                                  HeadTensor{views_.inputs.key, key_},
                                  HeadTensor{views_.inputs.value, value_}});
  }
  [[nodiscard]] RingForward views_of_heads() const {
    TensorView sinks;
    if (problem_.sinks) sinks = views_.inputs.sinks.slice(0, member_ * problem_.heads_q, problem_.heads_q);
    return {.inputs = {.query = query_,
                       .key = key_,
                       .value = value_,
                       .sinks = sinks,
                       .document_starts = views_.inputs.document_starts,
                       .blocks = {}},
            .output = output_,
            .lse = lse_};
  }

  Context& context_;
  const ParallelSchedule& schedule_;
  const RingForward& views_;
  HeadExchange exchange_;
  int member_;                       // of the group
  std::int64_t tokens_;              // of the group
  const AttentionProblem& problem_;  // of the rank's heads
  Tensor query_, key_, value_, output_, lse_;
};

}  // namespace

Support head_groups_support(const AttentionProblem& whole, int group) {
  if (whole.heads_q % group != 0 || whole.heads_kv % group != 0) {
    return Support::no(
        fmt::format("{} query heads and {} K/V heads cannot be dealt to {} ranks in equal parts",
                    whole.heads_q, whole.heads_kv, group));
  }
  const Mask& mask = whole.mask;
  if (mask.block_rows > 0) return Support::no("block lists of other ranks' queries are not exchanged");
  if (mask.dilation_count > 1 && !mask.mix_dilations) {
    return Support::no("groups of heads with their own dilation are not dealt to ranks");
  }
  for (int i = 0; i < mask.dilation_count; ++i) {
    const std::int64_t rate = mask.dilations[static_cast<std::size_t>(i)].rate;
    if (whole.heads_q / group % rate != 0) {
      return Support::no(fmt::format("{} heads of a rank do not have every offset of dilation rate {}",
                                     whole.heads_q / group, rate));
    }
  }
  return Support::yes();
}

void head_groups_forward(Context& context, const ParallelSchedule& schedule, const RingForward& views,
                         std::string_view pinned) {
  HeadRank(context, schedule, views).forward(pinned);
}

void head_groups_backward(Context& context, const ParallelSchedule& schedule, const RingBackward& views,
                          std::string_view pinned) {
  HeadRank(context, schedule, views.forward).backward(views, pinned);
}

std::int64_t group_sent_bytes(const ParallelSchedule& schedule, int rank, Pass pass) {
  return group_sent_bytes(schedule.ring().problem(), schedule.group(), schedule.partition().tokens(rank),
                          schedule.ring().partition().tokens(rank / schedule.group()), pass);
}

std::int64_t group_sent_bytes(const AttentionProblem& of_rank, int group, std::int64_t own_tokens,
                              std::int64_t all_tokens, Pass pass) {
  const std::int64_t members = group - 1;  // besides this one
  const std::int64_t own = of_rank.batch * own_tokens;
  const std::int64_t others = of_rank.batch * all_tokens - own;
  // Of a token that goes to one other rank.
  const auto row_bytes = [&](std::int64_t heads, DType dtype) {
    return checked_multiply(heads * of_rank.head_dim, size_bytes(dtype));
  };
  const std::int64_t all_heads = of_rank.heads_q + 2 * of_rank.heads_kv;
  const std::int64_t lse = of_rank.heads_q * size_bytes(of_rank.dtype_of_sums());
  const std::int64_t inputs = row_bytes(all_heads, of_rank.dtype);
  const std::int64_t output = row_bytes(of_rank.heads_q, of_rank.dtype_of_output());
  if (pass == Pass::forward) return own * members * inputs + others * (output + lse);
  return own * members * (inputs + 2 * output + lse) +
         others * row_bytes(all_heads, of_rank.dtype_of_gradients());
}

}  // namespace headroom
