// One block per token reads its logits twice: for the statistics, then for the gradients, which take their
// place. Bound by memory: a block is as large as can be, so that few tokens are under way and the second read
// finds them in L2.
#include "loss/cuda/softmax.h"

#include "loss/cuda/logits.h"

namespace headroom::cuda {
namespace {

template <DType kType>
struct SoftmaxCall {
  RowsOf<kType> logits;
  std::int64_t vocab;
  std::int64_t first;
  LossLabels labels;
  LossScratch scratch;
  float label_smoothing;
  float z_loss;
  float softcap;
  const float* loss_gradient;  // null: the losses alone
  bool gradient_per_token;
};

template <bool kWhole, bool kCapped, DType kType>
__global__ void __launch_bounds__(kTokenThreads) softmax_loss_kernel(SoftmaxCall<kType> call) {
  auto* shared = reinterpret_cast<Statistics*>(shared_memory);
  const std::int64_t token = call.first + blockIdx.x;
  Stored<kType>* row = call.logits.row(blockIdx.x);
  const std::int64_t label = call.labels.label(token);
  const double divisor = *call.scratch.divisor;
  const double weight = label < 0 || divisor == 0 ? 0 : call.labels.weight(token) / divisor;
  if (weight == 0) {
    if (threadIdx.x == 0) call.scratch.losses[token] = 0;
    if (call.loss_gradient == nullptr) return;
    for (std::int64_t i = threadIdx.x * kEight; i < call.vocab; i += kTokenThreads * kEight) {
      store_eight<kType>(row + i, call.vocab - i, call.logits.aligned, Eight{});
    }
    return;
  }

  shared[threadIdx.x] = thread_statistics<kWhole, kCapped, kType>(row, call.vocab, call.softcap);
  merge_block(shared);
  const bool there = label < call.vocab;
  const float target =
      there ? capped<kCapped>(widen<kType>(row[label]), call.softcap) : bits_to_float(0x7fc00000u);
  __syncthreads();  // everybody has read the label's logit, and sees the sums
  const Statistics all = shared[0];
  const double log_sum = log(static_cast<double>(all.sum));
  const double lse = static_cast<double>(all.max) + log_sum;
  const double smoothing = call.label_smoothing;
  if (threadIdx.x == 0) {
    const double max = all.max;
    const double mean = static_cast<double>(all.logits) / static_cast<double>(call.vocab);
    const double loss = (1 - smoothing) * (max - static_cast<double>(target) + log_sum) +
                        smoothing * (max - mean + log_sum) + static_cast<double>(call.z_loss) * lse * lse;
    call.scratch.losses[token] = weight * loss;
  }
  if (call.loss_gradient == nullptr) return;

  const double scale = weight * static_cast<double>(call.loss_gradient[call.gradient_per_token ? token : 0]);
  const auto factor = static_cast<float>(scale * (1 + 2 * static_cast<double>(call.z_loss) * lse) /
                                         static_cast<double>(all.sum));
  const auto smoothed = static_cast<float>(scale * smoothing / static_cast<double>(call.vocab));
  const auto share = there ? static_cast<float>(scale * (1 - smoothing)) : bits_to_float(0x7fc00000u);
  store_gradients<kWhole, kCapped, kType>(row, call.vocab, call.softcap,
                                          {.max = all.max,
                                           .factor = factor,
                                           .smoothing = smoothed,
                                           .share = share,
                                           .label = there ? label : kEveryColumn});
}

// divisor <- the weights of the tokens that count; one block
__global__ void loss_divisor_kernel(LossLabels labels, std::int64_t tokens, double* divisor) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < tokens; i += kTokenThreads) {
    if (labels.label(i) >= 0) sum += labels.weight(i);
  }
  sum = sum_block<kTokenThreads>(sum);
  if (threadIdx.x == 0) *divisor = sum;
}

__global__ void set_divisor_kernel(double* divisor) {
  if (threadIdx.x == 0) *divisor = 1;
}

// loss <- the sum of the tokens' losses, or each of them; one block
__global__ void loss_total_kernel(const double* losses, std::int64_t tokens, float* loss, bool each) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < tokens; i += kTokenThreads) {
    if (each) loss[i] = static_cast<float>(losses[i]);
    sum += losses[i];
  }
  if (each) return;
  sum = sum_block<kTokenThreads>(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum);
}

}  // namespace

void loss_divisor(const LossProblem& problem, const LossLabels& labels, const LossScratch& scratch,
                  const Stream& stream) {
  if (problem.reduction == Reduction::mean) {
    launch("loss_divisor_kernel", loss_divisor_kernel, 1, kTokenThreads, sum_block_bytes(kTokenThreads),
           stream, labels, problem.tokens, scratch.divisor);
  } else {
    launch("set_divisor_kernel", set_divisor_kernel, 1, kWarp, 0, stream, scratch.divisor);
  }
}

void softmax_loss(const LossProblem& problem, const LossLabels& labels, const LossScratch& scratch,
                  const TensorView& logits, std::int64_t first, const TensorView& loss_gradient,
                  const Stream& stream) {
  with_dtype(logits.dtype(), [&]<DType kType>() {
    const SoftmaxCall<kType> call{.logits = rows_of<kType>(logits),
                                  .vocab = problem.vocab,
                                  .first = first,
                                  .labels = labels,
                                  .scratch = scratch,
                                  .label_smoothing = problem.label_smoothing,
                                  .z_loss = problem.z_loss,
                                  .softcap = problem.softcap,
                                  .loss_gradient = static_cast<const float*>(loss_gradient.raw()),
                                  .gradient_per_token = problem.reduction == Reduction::none};
    const auto run = [&]<bool kWhole, bool kCapped>() {
      launch("softmax_loss_kernel", softmax_loss_kernel<kWhole, kCapped, kType>, logits.extent(0),
             kTokenThreads, kTokenThreads * static_cast<std::int64_t>(sizeof(Statistics)), stream, call);
    };
    with_logits<kType>(call.logits, problem.vocab, problem.softcap, run);
  });
}

void loss_total(const LossProblem& problem, const LossScratch& scratch, const TensorView& loss,
                const Stream& stream) {
  launch("loss_total_kernel", loss_total_kernel, 1, kTokenThreads, sum_block_bytes(kTokenThreads), stream,
         static_cast<const double*>(scratch.losses), problem.tokens, loss.data<float>(),
         problem.reduction == Reduction::none);
}

}  // namespace headroom::cuda
