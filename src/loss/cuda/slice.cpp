// The loss over a slice of the vocabulary on a GPU. A chunk's logits are in the dtype of the problem, and
// their gradients take their place, as in fused.cpp.
#include "loss/cuda/slice.h"

#include <algorithm>

#include "core/pieces.h"
#include "loss/slice.h"
#include "ops/cuda/ops.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

constexpr std::int64_t kRowAlignment = 64;  // elements; what products and copies like

struct SlicePieces {
  SlicePieces(const SliceCall& call, const DeviceDescription& device, std::byte* base) {
    Pieces pieces(base);
    const LossProblem& problem = call.problem;
    const std::int64_t stride = round_up(call.slice.words, kRowAlignment);
    const std::int64_t words = std::max<std::int64_t>(call.slice.words, 1);
    // First: cuBLASLt wants it at a multiple of 256 bytes.
    const std::int64_t product =
        std::max({product_workspace_bytes(words, problem.hidden, device, problem.dtype),
                  product_workspace_bytes(problem.hidden, words, device),
                  product_workspace_bytes(problem.hidden, call.chunk_tokens, device)});
    product_workspace = TensorView(pieces.take<std::byte>(product), DType::u8, {product});
    const std::int64_t bytes_of_logits =
        checked_multiply(call.chunk_tokens, stride * size_bytes(problem.dtype));
    logits = TensorView(pieces.take<std::byte>(bytes_of_logits), problem.dtype, {call.chunk_tokens, stride})
                 .slice(1, 0, call.slice.words);
    scratch.divisor = pieces.take<double>(1);
    scratch.losses = pieces.take<double>(problem.tokens);
    bytes = pieces.bytes();
  }
  SlicePieces(const SliceCall& call, const TensorView& workspace, const Stream& stream)
      : SlicePieces(call, *stream.device, static_cast<std::byte*>(workspace.raw())) {
    check(workspace.bytes() >= bytes, "the loss needs a workspace of {} bytes, not {}", bytes,
          workspace.bytes());
  }

  TensorView logits;  // [chunk, words]
  cuda::LossScratch scratch;
  TensorView product_workspace;
  std::int64_t bytes;
};

void begin(const SliceCall& call, Pass, TensorView workspace, const Stream& stream) {
  cuda::loss_divisor(call.problem, own_labels(call), SlicePieces(call, workspace, stream).scratch, stream);
}

void place(const SliceCall& call, std::int64_t first, const SliceChunk& to, const Stream& stream) {
  cuda::convert(call.hidden.slice(0, first, to.count()), to.hidden, stream);
  cuda::place_labels(own_labels(call), first, to.labels, stream);
}

void statistics(const SliceCall& call, const SliceChunk& chunk, Pass, TensorView workspace,
                const Stream& stream) {
  const SlicePieces pieces(call, workspace, stream);
  const TensorView z = pieces.logits.slice(0, 0, chunk.count());
  if (call.slice.words > 0) {
    product_row(*stream.device)
        .run({chunk.hidden, call.weight.transpose(0, 1), z}, pieces.product_workspace, stream);
  }
  cuda::slice_statistics(call, chunk, z, stream);
}

void judge(const SliceCall& call, const TensorView& parts, std::int64_t first, const SliceChunk& own,
           Pass pass, TensorView workspace, const Stream& stream) {
  cuda::slice_judge(call, own_labels(call), SlicePieces(call, workspace, stream).scratch, parts, first, own,
                    pass, stream);
}

void gradients(const SliceCall& call, const SliceChunk& chunk, TensorView workspace, const Stream& stream) {
  if (call.slice.words == 0) return cuda::zero(chunk.hidden_gradient, stream);
  const SlicePieces pieces(call, workspace, stream);
  const TensorView z = pieces.logits.slice(0, 0, chunk.count());
  cuda::slice_gradients(call, chunk, z, stream);
  const ProductRow& row = product_row(*stream.device);
  row.run({z, call.weight, chunk.hidden_gradient}, pieces.product_workspace, stream);
  row.run({z.transpose(0, 1), chunk.hidden, call.weight_gradient, true}, pieces.product_workspace, stream);
}

void store(const SliceCall& call, std::int64_t first, const TensorView& sums, const Stream& stream) {
  cuda::convert(sums, call.hidden_gradient.slice(0, first, sums.extent(0)), stream);
}

void end(const SliceCall& call, Pass, TensorView workspace, const Stream& stream) {
  cuda::loss_total(call.problem, SlicePieces(call, workspace, stream).scratch, call.loss, stream);
}

}  // namespace

const SliceRow& slice_cuda() {
  static constexpr SliceRow kRow{
      .name = "slice-cuda",
      .supports =
          [](const SliceCall&, const DeviceDescription& device) {
            return device.kind == DeviceKind::cuda ? Support::yes() : Support::no("it runs on CUDA GPUs");
          },
      .workspace_bytes = [](const SliceCall& call, const DeviceDescription& device,
                            Pass) { return SlicePieces(call, device, nullptr).bytes; },
      .begin = begin,
      .place = place,
      .statistics = statistics,
      .judge = judge,
      .gradients = gradients,
      .store = store,
      .end = end};
  return kRow;
}

}  // namespace headroom
