// One block per token for its logits over the rank's words, and one thread per token for what is left.
#include "loss/cuda/slice.h"

#include "loss/cuda/logits.h"
#include "loss/token_rule.h"

namespace headroom::cuda {
namespace {

constexpr int kJudgeThreads = 128;

template <DType kType>
struct SliceLogits {
  RowsOf<kType> logits;
  std::int64_t words;
  std::int64_t first_word;
  const std::int32_t* labels;
  float softcap;
  TokenStatistics* statistics;
  const TokenRule* rules;
};

template <bool kWhole, bool kCapped, DType kType>
__global__ void __launch_bounds__(kTokenThreads) slice_statistics_kernel(SliceLogits<kType> call) {
  auto* shared = reinterpret_cast<Statistics*>(shared_memory);
  const std::int64_t token = blockIdx.x;
  const Stored<kType>* row = call.logits.row(token);
  shared[threadIdx.x] = thread_statistics<kWhole, kCapped, kType>(row, call.words, call.softcap);
  merge_block(shared);
  if (threadIdx.x != 0) return;
  const std::int64_t word = call.labels[token] - call.first_word;
  TokenStatistics& found = call.statistics[token];
  found.max = shared[0].max;
  found.sum = shared[0].sum;
  found.logit_sum = shared[0].logits;
  found.target =
      word >= 0 && word < call.words ? capped<kCapped>(widen<kType>(row[word]), call.softcap) : 0.0F;
}

template <bool kWhole, bool kCapped, DType kType>
__global__ void __launch_bounds__(kTokenThreads) slice_gradients_kernel(SliceLogits<kType> call) {
  const std::int64_t token = blockIdx.x;
  const TokenRule rule = call.rules[token];
  const std::int64_t word = call.labels[token] - call.first_word;
  store_gradients<kWhole, kCapped, kType>(call.logits.row(token), call.words, call.softcap,
                                          {.max = rule.max,
                                           .factor = rule.factor,
                                           .smoothing = rule.smoothing,
                                           .share = rule.share,
                                           .label = word >= 0 && word < call.words ? word : call.words});
}

__global__ void place_labels_kernel(LossLabels labels, std::int64_t first, std::int64_t count,
                                    std::int32_t* placed) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kJudgeThreads + threadIdx.x;
  if (t >= count) return;
  constexpr std::int64_t kMost = 0x7fffffff;  // past every vocabulary
  const std::int64_t label = labels.label(first + t);
  placed[t] = static_cast<std::int32_t>(label < kMost ? label : kMost);
}

struct JudgeCall {
  TokenJudge judge;
  LossLabels labels;
  LossScratch scratch;
  const TokenStatistics* parts;
  std::int64_t ranks;
  std::int64_t first;
  std::int64_t count;
  const float* loss_gradient;  // null: the losses alone
  TokenRule* rules;
};

__global__ void slice_judge_kernel(JudgeCall call) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kJudgeThreads + threadIdx.x;
  if (t >= call.count) return;
  const MergedStatistics merged = merge_statistics(call.parts + t, call.count, call.ranks);
  const std::int64_t label = call.labels.label(call.first + t);
  call.judge.divisor = *call.scratch.divisor;
  call.scratch.losses[call.first + t] = call.judge.loss(merged, label);
  if (call.loss_gradient == nullptr) return;
  call.judge.loss_gradient = *call.loss_gradient;
  call.rules[t] = call.judge.rule(merged, label);
}

template <DType kType>
SliceLogits<kType> logits_of(const SliceCall& call, const SliceChunk& chunk, const TensorView& logits) {
  return {.logits = rows_of<kType>(logits),
          .words = call.slice.words,
          .first_word = call.slice.first,
          .labels = chunk.labels.data<std::int32_t>(),
          .softcap = call.problem.softcap,
          .statistics = static_cast<TokenStatistics*>(chunk.statistics.raw()),
          .rules = static_cast<const TokenRule*>(chunk.rules.raw())};
}

}  // namespace

void place_labels(const LossLabels& labels, std::int64_t first, const TensorView& placed,
                  const Stream& stream) {
  const std::int64_t count = placed.extent(0);
  launch("place_labels_kernel", place_labels_kernel, divide_up(count, kJudgeThreads), kJudgeThreads, 0,
         stream, labels, first, count, placed.data<std::int32_t>());
}

void slice_statistics(const SliceCall& call, const SliceChunk& chunk, const TensorView& logits,
                      const Stream& stream) {
  with_dtype(logits.dtype(), [&]<DType kType>() {
    const SliceLogits<kType> rows = logits_of<kType>(call, chunk, logits);
    with_logits<kType>(rows.logits, rows.words, rows.softcap, [&]<bool kWhole, bool kCapped>() {
      launch("slice_statistics_kernel", slice_statistics_kernel<kWhole, kCapped, kType>, chunk.count(),
             kTokenThreads, kTokenThreads * static_cast<std::int64_t>(sizeof(Statistics)), stream, rows);
    });
  });
}

void slice_judge(const SliceCall& call, const LossLabels& labels, const LossScratch& scratch,
                 const TensorView& parts, std::int64_t first, const SliceChunk& own, Pass pass,
                 const Stream& stream) {
  const JudgeCall judge{.judge = {.vocab = call.problem.vocab,
                                  .label_smoothing = call.problem.label_smoothing,
                                  .z_loss = call.problem.z_loss,
                                  .divisor = 0,
                                  .loss_gradient = 0},
                        .labels = labels,
                        .scratch = scratch,
                        .parts = static_cast<const TokenStatistics*>(parts.raw()),
                        .ranks = call.ranks,
                        .first = first,
                        .count = own.count(),
                        .loss_gradient = pass == Pass::backward ? call.loss_gradient.data<float>() : nullptr,
                        .rules = static_cast<TokenRule*>(own.rules.raw())};
  launch("slice_judge_kernel", slice_judge_kernel, divide_up(own.count(), kJudgeThreads), kJudgeThreads, 0,
         stream, judge);
}

void slice_gradients(const SliceCall& call, const SliceChunk& chunk, const TensorView& logits,
                     const Stream& stream) {
  with_dtype(logits.dtype(), [&]<DType kType>() {
    const SliceLogits<kType> rows = logits_of<kType>(call, chunk, logits);
    with_logits<kType>(rows.logits, rows.words, rows.softcap, [&]<bool kWhole, bool kCapped>() {
      launch("slice_gradients_kernel", slice_gradients_kernel<kWhole, kCapped, kType>, chunk.count(),
             kTokenThreads, 0, stream, rows);
    });
  });
}

}  // namespace headroom::cuda
