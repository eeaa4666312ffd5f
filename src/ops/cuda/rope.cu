// Rotary position embedding of heads that are no multiple of eight long, or that lie anywhere: the angles of
// a few tokens once, then all their heads.
#include "ops/cuda/angles.h"
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

constexpr std::int64_t kTokens = 4;  // of a block

template <DType kType>
struct RopeTokens {
  RowsOf<kType> x;  // a row is a head
  std::int64_t tokens;
  bool aligned;  // both halves of every head
  Rotation rotation;
};

template <DType kType>
__global__ void rope_kernel(RopeTokens<kType> call) {
  auto* angles = reinterpret_cast<Angle*>(shared_memory);  // [tokens of the block, half]
  const int half = call.rotation.frequencies.half;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  const auto count = static_cast<int>(call.tokens - first < kTokens ? call.tokens - first : kTokens);
  make_angles(call.rotation, first, count, kThreads, angles);
  __syncthreads();
  // (a, b) <- (a cos - b sin, b cos + a sin)
  const auto heads = static_cast<int>(call.x.inner);
  const int eights = (half + kEight - 1) / kEight;
  for (int i = static_cast<int>(threadIdx.x); i < count * heads * eights; i += kThreads) {
    const int column = i % eights * kEight;
    const int row = i / eights;  // token by token, head by head
    Stored<kType>* left = call.x.row(first * heads + row) + column;
    Stored<kType>* right = left + half;
    Eight a = load_eight<kType>(left, half - column, call.aligned);
    Eight b = load_eight<kType>(right, half - column, call.aligned);
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      const Angle angle = column + j < half ? angles[row / heads * half + column + j] : Angle{};
      const float turned = a.at[j] * angle.cosine - b.at[j] * angle.sine;
      b.at[j] = b.at[j] * angle.cosine + a.at[j] * angle.sine;
      a.at[j] = turned;
    }
    store_eight<kType>(left, half - column, call.aligned, a);
    store_eight<kType>(right, half - column, call.aligned, b);
  }
}

}  // namespace

void rope(const TensorView& x, const TensorView& positions, const RopeFrequencies& frequencies, Pass pass,
          const Stream& stream) {
  if (x.elements() == 0 || rope_in_halves(x, {positions, frequencies}, pass, stream)) return;
  with_dtype(x.dtype(), [&]<DType kType>() {
    RopeTokens<kType> call{.x = rows_of<kType>(x),
                           .tokens = x.extent(0),
                           .aligned = false,
                           .rotation = {.positions = positions.data<std::int32_t>(),
                                        .frequencies = frequencies,
                                        .backward = pass == Pass::backward}};
    call.aligned = call.x.aligned && frequencies.half % kEight == 0;
    launch("rope_kernel", rope_kernel<kType>, divide_up(call.tokens, kTokens), kThreads,
           kTokens * frequencies.half * static_cast<std::int64_t>(sizeof(Angle)), stream, call);
  });
}

}  // namespace headroom::cuda
