#include "headroom/ops/rope.h"

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/rope.h"
#include "ops/work.h"

namespace headroom {
namespace {

struct InPlace {
  TensorView x, positions;
  const RopeFrequencies& frequencies;
  Pass pass;
};
constexpr OperationRow<InPlace> kRows[] = {
    {"cpu", on_cpus,
     [](const InPlace& call, TensorView, const Stream& stream) {
       cpu::rope(call.x, call.positions, call.frequencies, call.pass, stream);
     }},
    {"cuda", on_cuda_gpus, [](const InPlace& call, TensorView, const Stream& stream) {
       cuda::rope(call.x, call.positions, call.frequencies, call.pass, stream);
     }}};

}  // namespace

void check_rope(const TensorView& x, const RopeCall& rope) {
  const Arguments arguments("rope");
  arguments.floating(x, "x");
  arguments.rank(x, 3, 3, "x");
  arguments.written_rows(x, "x");
  check(x.extent(2) == 2 * std::int64_t{rope.frequencies.half},
        "rope: x has heads of {} elements, the frequencies are for {}", x.extent(2),
        2 * rope.frequencies.half);
  arguments.vector(rope.positions, DType::i32, {x.extent(0)}, "positions");
}

void rope(Context& context, const TensorView& x, const TensorView& positions,
          const RopeFrequencies& frequencies, Pass pass) {
  check_rope(x, {positions, frequencies});
  run_operation<InPlace>(context, kRows, {x, positions, frequencies, pass}, moves("rope", {x, x}));
}

namespace cpu {

void rope(const TensorView& x, const TensorView& positions, const RopeFrequencies& frequencies, Pass pass,
          const Stream& stream) {
  const RopeTokens tokens{.x = x.raw(),
                          .dtype = x.dtype(),
                          .token_stride = x.stride(0),
                          .head_stride = x.stride(1),
                          .heads = x.extent(1),
                          .positions = positions.data<std::int32_t>(),
                          .frequencies = &frequencies,
                          .backward = pass == Pass::backward};
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_row_chunks(x.extent(0), x.extent(1) * x.extent(2), stream,
                 [&](std::int64_t begin, std::int64_t end) { kernels.rope(tokens, begin, end); });
}

}  // namespace cpu
}  // namespace headroom
