// Rotary position embedding: the angles of a few tokens once, in double up to the last step, then all their
// heads.
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

constexpr std::int64_t kTokens = 4;  // of a block

struct Angle {
  float cosine;
  float sine;
};

// Of position * inverse, right to the last bit or so of f32 at every 32-bit position: the product and what is
// left of it after whole quarter turns are exact to twice a double's digits.
__device__ __forceinline__ Angle angle_of(std::int32_t position, double inverse, double magnitude) {
  constexpr double kQuarterTurn = 0x1.921fb54442d18p+0;
  constexpr double kQuarterTurnRest = 0x1.1a62633145c07p-54;
  constexpr double kQuarterTurnsPerRadian = 0x1.45f306dc9c883p-1;
  const auto p = static_cast<double>(position);
  const double product = p * inverse;
  const double rest = fma(p, inverse, -product);
  const double turns = rint(product * kQuarterTurnsPerRadian);
  const double r = fma(-turns, kQuarterTurn, product) + fma(-turns, kQuarterTurnRest, rest);
  double c = magnitude * cos(r);
  double s = magnitude * sin(r);
  // Odd quarter turns swap the two; each quarter turn changes a sign.
  const auto quarter = static_cast<std::int64_t>(turns);
  if (quarter & 1) {
    const double before = c;
    c = s;
    s = before;
  }
  if ((quarter + 1) & 2) c = -c;
  if (quarter & 2) s = -s;
  return {static_cast<float>(c), static_cast<float>(s)};
}

template <DType kType>
struct RopeTokens {
  RowsOf<kType> x;  // a row is a head
  const std::int32_t* positions;
  std::int64_t tokens;
  bool backward;
  bool aligned;  // both halves of every head
  RopeFrequencies frequencies;
};

template <DType kType>
__global__ void rope_kernel(RopeTokens<kType> call) {
  auto* angles = reinterpret_cast<Angle*>(shared_memory);  // [tokens of the block, half]
  const int half = call.frequencies.half;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  const std::int64_t count = call.tokens - first < kTokens ? call.tokens - first : kTokens;
  for (int i = static_cast<int>(threadIdx.x); i < count * half; i += kThreads) {
    Angle angle = angle_of(call.positions[first + i / half], call.frequencies.inverse[i % half],
                           call.frequencies.magnitude);
    if (call.backward) angle.sine = -angle.sine;
    angles[i] = angle;
  }
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
  if (x.elements() == 0) return;
  with_dtype(x.dtype(), [&]<DType kType>() {
    RopeTokens<kType> call{.x = rows_of<kType>(x),
                           .positions = positions.data<std::int32_t>(),
                           .tokens = x.extent(0),
                           .backward = pass == Pass::backward,
                           .aligned = false,
                           .frequencies = frequencies};
    call.aligned = call.x.aligned && frequencies.half % kEight == 0;
    launch("rope_kernel", rope_kernel<kType>, divide_up(call.tokens, kTokens), kThreads,
           kTokens * frequencies.half * static_cast<std::int64_t>(sizeof(Angle)), stream, call);
  });
}

}  // namespace headroom::cuda
