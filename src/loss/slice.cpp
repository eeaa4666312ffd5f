#include "loss/slice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/pieces.h"
#include "loss/chunk_logits.h"
#include "loss/token_rule.h"
#include "ops/cpu/ops.h"

namespace headroom {
namespace {

struct SlicePieces {
  SlicePieces(const SliceCall& call, Pass pass, const DeviceDescription& device, std::byte* base) {
    Pieces pieces(base);
    const LossProblem& problem = call.problem;
    const std::int64_t stride = ChunkLogits::stride_of(call.chunk_tokens);
    logits = pieces.take<float>(checked_multiply(call.slice.words, stride));
    partial = pieces.take<float>(ChunkLogits::partial_floats(call.slice.words, stride));
    max = pieces.take<float>(stride);
    sum = pieces.take<float>(stride);
    logit_sum = pieces.take<float>(stride);
    factor = pieces.take<float>(stride);
    smoothing = pieces.take<float>(stride);
    divisor = pieces.take<double>(1);
    total = pieces.take<double>(1);
    std::int64_t product = product_workspace_bytes(call.chunk_tokens, problem.hidden, device);
    if (pass == Pass::backward) {
      product = std::max(
          {product,
           product_workspace_bytes(problem.hidden, std::max<std::int64_t>(call.slice.words, 1), device),
           product_workspace_bytes(problem.hidden, call.chunk_tokens, device)});
    }
    product_workspace = TensorView(pieces.take<std::byte>(product), DType::u8, {product});
    bytes = pieces.bytes();
  }
  SlicePieces(const SliceCall& call, Pass pass, const TensorView& workspace, const Stream& stream)
      : SlicePieces(call, pass, *stream.device, static_cast<std::byte*>(workspace.raw())) {
    check(workspace.bytes() >= bytes, "the loss needs a workspace of {} bytes, not {}", bytes,
          workspace.bytes());
  }

  float* logits;                 // [words][stride]
  float* partial;                // see ChunkLogits
  float *max, *sum, *logit_sum;  // [stride]
  float *factor, *smoothing;     // [stride]
  double *divisor, *total;       // [1]: the rank's labels, their loss
  TensorView product_workspace;
  std::int64_t bytes;
};

void begin(const SliceCall& call, Pass pass, TensorView workspace, const Stream& stream) {
  const SlicePieces pieces(call, pass, workspace, stream);
  const LossLabels labels = own_labels(call);
  *pieces.divisor = 0;
  *pieces.total = 0;
  for (std::int64_t token = 0; token < call.problem.tokens; ++token) {
    const std::int64_t label = labels.label(token);
    check(label < call.problem.vocab, "label {} of token {} is neither in 0 to {} nor {}, which is ignored",
          labels.labels[token], token, call.problem.vocab - 1, call.problem.ignore_index);
    if (label >= 0) *pieces.divisor += 1;
  }
}

void place(const SliceCall& call, std::int64_t first, const SliceChunk& to, const Stream& stream) {
  const std::int64_t count = to.count();
  cpu::convert(call.hidden.slice(0, first, count), to.hidden, stream);
  const LossLabels labels = own_labels(call);
  auto* placed = to.labels.data<std::int32_t>();
  for (std::int64_t t = 0; t < count; ++t) placed[t] = static_cast<std::int32_t>(labels.label(first + t));
}

// The label's place among the rank's words; negative or past them where it is another's.
std::int64_t own_word(const SliceCall& call, const SliceChunk& chunk, std::int64_t token) {
  return chunk.labels.data<std::int32_t>()[token] - call.slice.first;
}
bool is_own(const SliceCall& call, std::int64_t word) {
  return word >= 0 && word < call.slice.words;
}

void statistics(const SliceCall& call, const SliceChunk& chunk, Pass pass, TensorView workspace,
                const Stream& stream) {
  const SlicePieces pieces(call, pass, workspace, stream);
  const std::int64_t count = chunk.count();
  const std::int64_t stride = ChunkLogits::stride_of(count);
  std::fill_n(pieces.max, stride, -std::numeric_limits<float>::infinity());
  std::fill_n(pieces.sum, stride, 0.0F);
  std::fill_n(pieces.logit_sum, stride, 0.0F);
  if (call.slice.words > 0) {
    const ChunkLogits logits(call.problem.softcap, pieces.partial, pieces.product_workspace, stream);
    logits.make(pieces.logits, call.weight, chunk.hidden, false);
    logits.add_statistics(pieces.logits, call.slice.words, count, false,
                          {.max = pieces.max, .sum = pieces.sum, .logit_sum = pieces.logit_sum});
  }
  auto* found = static_cast<TokenStatistics*>(chunk.statistics.raw());
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t word = own_word(call, chunk, t);
    found[t] = {.max = pieces.max[t],
                .sum = pieces.sum[t],
                .logit_sum = pieces.logit_sum[t],
                .target = is_own(call, word) ? pieces.logits[word * stride + t] : 0.0F};
  }
}

void judge(const SliceCall& call, const TensorView& parts, std::int64_t first, const SliceChunk& own,
           Pass pass, TensorView workspace, const Stream& stream) {
  const SlicePieces pieces(call, pass, workspace, stream);
  const std::int64_t count = own.count();
  const auto* statistics = static_cast<const TokenStatistics*>(parts.raw());
  auto* rules = static_cast<TokenRule*>(own.rules.raw());
  const LossLabels labels = own_labels(call);
  const TokenJudge token_judge{
      .vocab = call.problem.vocab,
      .label_smoothing = call.problem.label_smoothing,
      .z_loss = call.problem.z_loss,
      .divisor = *pieces.divisor,
      .loss_gradient = pass == Pass::backward ? call.loss_gradient.data<float>()[0] : 0};
  for (std::int64_t t = 0; t < count; ++t) {
    const MergedStatistics merged = merge_statistics(statistics + t, count, call.ranks);
    const std::int64_t label = labels.label(first + t);
    *pieces.total += token_judge.loss(merged, label);
    if (pass == Pass::backward) rules[t] = token_judge.rule(merged, label);
  }
}

void gradients(const SliceCall& call, const SliceChunk& chunk, TensorView workspace, const Stream& stream) {
  const SlicePieces pieces(call, Pass::backward, workspace, stream);
  const std::int64_t words = call.slice.words;
  if (words == 0) return cpu::zero(chunk.hidden_gradient, stream);
  const std::int64_t count = chunk.count();
  const std::int64_t stride = ChunkLogits::stride_of(count);
  const auto* rules = static_cast<const TokenRule*>(chunk.rules.raw());
  const auto* statistics = static_cast<const TokenStatistics*>(chunk.statistics.raw());
  for (std::int64_t t = 0; t < stride; ++t) {
    const TokenRule rule = t < count ? rules[t] : TokenRule{};
    pieces.max[t] = rule.max;
    pieces.factor[t] = rule.factor;
    pieces.smoothing[t] = rule.smoothing;
  }
  const ChunkLogits logits(call.problem.softcap, pieces.partial, pieces.product_workspace, stream);
  logits.make_gradients(pieces.logits, words, count,
                        {.max = pieces.max, .factor = pieces.factor, .smoothing = pieces.smoothing});
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t word = own_word(call, chunk, t);
    if (!is_own(call, word)) continue;
    const float part = call.problem.softcap == 0 ? 0 : statistics[t].target / call.problem.softcap;
    pieces.logits[word * stride + t] -= rules[t].share * (1 - part * part);
  }
  const TensorView dz = ChunkLogits::view(pieces.logits, words, count);
  logits.multiply({dz.transpose(0, 1), call.weight, chunk.hidden_gradient});
  logits.multiply({dz, chunk.hidden, call.weight_gradient, true});
}

void store(const SliceCall& call, std::int64_t first, const TensorView& sums, const Stream& stream) {
  cpu::convert(sums, call.hidden_gradient.slice(0, first, sums.extent(0)), stream);
}

void end(const SliceCall& call, Pass pass, TensorView workspace, const Stream& stream) {
  call.loss.data<float>()[0] = static_cast<float>(*SlicePieces(call, pass, workspace, stream).total);
}

}  // namespace

const SliceRow& slice_cpu() {
  static constexpr SliceRow kRow{
      .name = "slice",
      .supports =
          [](const SliceCall&, const DeviceDescription& device) {
            return device.kind == DeviceKind::cpu ? Support::yes() : Support::no("it runs on a CPU");
          },
      .workspace_bytes = [](const SliceCall& call, const DeviceDescription& device,
                            Pass pass) { return SlicePieces(call, pass, device, nullptr).bytes; },
      .begin = begin,
      .place = place,
      .statistics = statistics,
      .judge = judge,
      .gradients = gradients,
      .store = store,
      .end = end};
  return kRow;
}

std::span<const SliceRow> slice_rows() {
  static const std::array kTable = {slice_cpu(), slice_cuda()};
  return kTable;
}

}  // namespace headroom
