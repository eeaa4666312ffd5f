// Rows of a table by token. Backward sorts the tokens by id, and keeps the order of those that share one, so
// that their gradients are added in the order of the sequence, as on a CPU.
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/token_sort.h"

namespace headroom::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kDigits = TokenSort::kDigits;

template <DType kType>
struct Lookup {
  RowsOf<kType> table, x;
  const std::int32_t* ids;
  std::int64_t vocabulary;
  [[nodiscard]] bool aligned() const { return table.aligned && x.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    const std::int32_t id = ids[row];
    Eight values;
    if (id >= 0 && id < vocabulary) {
      values = load_eight<kType>(table.row(id) + column, count, table.aligned);
    } else {
#pragma unroll
      for (int i = 0; i < kEight; ++i) values.at[i] = bits_to_float(0x7fc00000u);
    }
    store_eight<kType>(x.row(row) + column, count, x.aligned, values);
  }
};

// One pass of the sort, over eight bits of the ids.
struct SortPass {
  const std::int32_t* ids;
  const std::int32_t* places;  // null: the tokens stand where they are
  std::int32_t* sorted_ids;
  std::int32_t* sorted_places;
  std::int32_t* counts;
  std::int64_t tokens;
  std::int64_t tiles;
  std::int32_t vocabulary;
  int shift;

  // Ids outside of the table become one that is none: among themselves, behind all others.
  __device__ __forceinline__ std::int32_t id(std::int64_t token) const {
    const std::int32_t given = ids[token];
    return given >= 0 && given < vocabulary ? given : vocabulary;
  }
  __device__ __forceinline__ int digit(std::int32_t id) const {
    return static_cast<int>(static_cast<std::uint32_t>(id) >> shift) & (kDigits - 1);
  }
};

// This warp's tile, and its counts in shared memory.
struct WarpTile {
  std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  std::int64_t begin = tile * TokenSort::kTile;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::int32_t* counts = reinterpret_cast<std::int32_t*>(shared_memory) + threadIdx.x / kWarp * kDigits;
};

// counts <- how many tokens of a tile have a digit; one warp per tile
__global__ void count_digits_kernel(SortPass pass) {
  const WarpTile warp;
  if (warp.tile >= pass.tiles) return;
  for (int i = warp.lane; i < kDigits; i += kWarp) warp.counts[i] = 0;
  __syncwarp();
  for (std::int64_t i = warp.begin + warp.lane; i < warp.begin + TokenSort::kTile && i < pass.tokens;
       i += kWarp) {
    atomicAdd(warp.counts + pass.digit(pass.id(i)), 1);
  }
  __syncwarp();
  for (int i = warp.lane; i < kDigits; i += kWarp) pass.counts[i * pass.tiles + warp.tile] = warp.counts[i];
}

// counts <- the sum of those before; one block
__global__ void sum_counts_kernel(std::int32_t* counts, std::int64_t count) {
  auto* sums = reinterpret_cast<std::int32_t*>(shared_memory);
  const std::int64_t share = (count + kThreads - 1) / kThreads;
  const std::int64_t begin = threadIdx.x * share;
  const std::int64_t end = begin + share < count ? begin + share : count;
  std::int32_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  std::int32_t before = 0;
  for (unsigned i = 0; i < threadIdx.x; ++i) before += sums[i];
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t own = counts[i];
    counts[i] = before;
    before += own;
  }
}

// Every token to its place among those of its digit, in their order; one warp per tile
__global__ void place_tokens_kernel(SortPass pass) {
  const WarpTile warp;
  if (warp.tile >= pass.tiles) return;
  for (int i = warp.lane; i < kDigits; i += kWarp) warp.counts[i] = pass.counts[i * pass.tiles + warp.tile];
  __syncwarp();
  for (std::int64_t first = warp.begin; first < warp.begin + TokenSort::kTile && first < pass.tokens;
       first += kWarp) {
    const std::int64_t i = first + warp.lane;
    const bool there = i < pass.tokens;
    const std::int32_t id = there ? pass.id(i) : 0;
    const int digit = pass.digit(id);
    // The lanes that are there and have the same digit.
    std::uint32_t same = __ballot_sync(0xffffffffu, there);
    for (int bit = 1; bit < kDigits; bit *= 2) {
      const std::uint32_t set = __ballot_sync(0xffffffffu, (digit & bit) != 0);
      same &= (digit & bit) != 0 ? set : ~set;
    }
    const int before = __popc(same & ((1u << warp.lane) - 1));
    const std::int32_t to = warp.counts[digit] + before;
    __syncwarp();
    if (there) {
      if (before == 0) warp.counts[digit] = to + __popc(same);
      pass.sorted_ids[to] = id;
      pass.sorted_places[to] = pass.places == nullptr ? static_cast<std::int32_t>(i) : pass.places[i];
    }
    __syncwarp();
  }
}

// table[id] <- table[id] + the tokens of that id, in order: by the first of them
template <DType kType, DType kTable>
struct AddTokens {
  RowsOf<kType> x_gradient;
  RowsOf<kTable> table;
  const std::int32_t* ids;  // sorted
  const std::int32_t* places;
  std::int64_t tokens;
  std::int64_t vocabulary;
  std::int32_t pad_token;
  [[nodiscard]] bool aligned() const { return x_gradient.aligned && table.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    const std::int32_t id = ids[row];
    if (id >= vocabulary || id == pad_token || (row > 0 && ids[row - 1] == id)) return;
    Stored<kTable>* to = table.row(id) + column;
    Eight sum = load_eight<kTable>(to, count, table.aligned);
    for (std::int64_t i = row; i < tokens && ids[i] == id; ++i) {
      const Eight value = load_eight<kType>(x_gradient.row(places[i]) + column, count, x_gradient.aligned);
#pragma unroll
      for (int j = 0; j < kEight; ++j) sum.at[j] += value.at[j];
    }
    store_eight<kTable>(to, count, table.aligned, sum);
  }
};

}  // namespace

void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x,
                       const Stream& stream) {
  with_dtype(table.dtype(), [&]<DType kType>() {
    for_eights(
        "embedding_kernel", x.extent(0), x.extent(1), stream,
        Lookup<kType>{rows_of<kType>(table), rows_of<kType>(x), ids.data<std::int32_t>(), table.extent(0)});
  });
}

void embedding_backward(const TensorView& ids, const TensorView& x_gradient, const TensorView& table_gradient,
                        std::int32_t pad_token, const TensorView& workspace, const Stream& stream) {
  const std::int64_t tokens = ids.elements();
  if (tokens == 0 || x_gradient.extent(1) == 0) return;
  Pieces pieces(static_cast<std::byte*>(workspace.raw()));
  const TokenSort sort = TokenSort::take(pieces, tokens);
  const std::int64_t tiles = TokenSort::tiles(tokens);
  const std::int64_t vocabulary = table_gradient.extent(0);
  SortPass pass{.ids = ids.data<std::int32_t>(),
                .places = nullptr,
                .sorted_ids = sort.ids[0],
                .sorted_places = sort.places[0],
                .counts = sort.counts,
                .tokens = tokens,
                .tiles = tiles,
                .vocabulary = static_cast<std::int32_t>(vocabulary),
                .shift = 0};
  constexpr std::int64_t kCountsBytes = std::int64_t{kWarps} * kDigits * sizeof(std::int32_t);
  for (int turn = 0; vocabulary >> pass.shift > 0; ++turn) {
    launch("count_digits_kernel", count_digits_kernel, divide_up(tiles, kWarps), kThreads, kCountsBytes,
           stream, pass);
    launch("sum_counts_kernel", sum_counts_kernel, 1, kThreads,
           kThreads * static_cast<std::int64_t>(sizeof(std::int32_t)), stream, pass.counts, kDigits * tiles);
    launch("place_tokens_kernel", place_tokens_kernel, divide_up(tiles, kWarps), kThreads, kCountsBytes,
           stream, pass);
    const int next = 1 - turn % 2;
    pass = {.ids = pass.sorted_ids,
            .places = pass.sorted_places,
            .sorted_ids = sort.ids[next],
            .sorted_places = sort.places[next],
            .counts = sort.counts,
            .tokens = tokens,
            .tiles = tiles,
            .vocabulary = pass.vocabulary,
            .shift = pass.shift + 8};
  }
  const auto add_to = [&]<DType kType, DType kTable>() {
    for_eights("embedding_backward_kernel", tokens, x_gradient.extent(1), stream,
               AddTokens<kType, kTable>{rows_of<kType>(x_gradient), rows_of<kTable>(table_gradient), pass.ids,
                                        pass.places, tokens, vocabulary, pad_token});
  };
  with_dtype(x_gradient.dtype(), [&]<DType kType>() {
    if (table_gradient.dtype() == DType::f32) return add_to.template operator()<kType, DType::f32>();
    add_to.template operator()<kType, kType>();
  });
}

}  // namespace headroom::cuda
