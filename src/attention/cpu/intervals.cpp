// Waves of K/V heads: enough heads at once to keep every core busy, no more, so that a long sequence needs
// packed copies of few heads. In a wave first everything is packed, then tiles are worked on.
//
// dQ without atomics: it has two sums, of the even and of the odd key tiles, so that two cores that work on
// one head do not walk in step. A key tile's part is added to its sum when all earlier key tiles of that sum
// have added theirs (a counter says whose turn it is). Tiles are taken in rising order, so the one waited for
// is always being worked on, and the order of additions never changes.
#include "attention/cpu/intervals.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "core/pieces.h"
#include "cpu/workers.h"

namespace headroom::cpu {

namespace {

// A wave has at least this many tiles, and this many for each thread, when there are as many: the last tile
// of a wave, during which other cores may idle, is then a few per cent of a core's work at most.
struct WaveTiles {
  std::int64_t least;
  std::int64_t per_thread;
};
constexpr WaveTiles kForwardWave{256, 32};
constexpr WaveTiles kBackwardWave{128, 32};
constexpr std::int64_t kAlignFloats = Pieces::kAlignment / 4;

// K/V heads per wave, the waves as even as possible.
std::int64_t wave_heads(const AttentionSizes& sizes, std::int64_t tiles_per_head, WaveTiles wave) {
  const std::int64_t heads = sizes.batch * sizes.heads_kv;
  const std::int64_t tiles = std::max(wave.least, wave.per_thread * sizes.threads);
  const std::int64_t wanted = std::clamp<std::int64_t>(
      divide_up(tiles, std::max<std::int64_t>(tiles_per_head, 1)), 1, std::max<std::int64_t>(heads, 1));
  return divide_up(heads, std::max<std::int64_t>(divide_up(heads, wanted), 1));
}

// Rows of one head, from `row` of those that take part.
RowsView rows_of(const HeadsView& view, DType dtype, const RowList& list, std::int64_t batch,
                 std::int64_t head, std::int64_t row) {
  const std::int64_t offset = batch * view.batch_stride + head * view.head_stride +
                              (list.rows == nullptr ? row * view.row_stride : 0);
  return {
      static_cast<std::byte*>(view.data) + offset * size_bytes(dtype), view.row_stride, dtype,
      list.rows == nullptr ? nullptr : list.rows + batch * list.batch_stride + head * list.head_stride + row};
}

// Their statistics: that of row i stands at RowsView::index(i).
template <class T>
T* statistics_of(const StatisticsView<T>& view, const RowList& list, std::int64_t batch, std::int64_t head,
                 std::int64_t row) {
  if (view.data == nullptr) return nullptr;
  return view.data + batch * view.batch_stride + head * view.head_stride + (list.rows == nullptr ? row : 0);
}

ScoreRule score_rule(const AttentionForwardCall& call) {
  if (call.softcap == 0) return {.factor = call.scale * kLog2E};
  return {.factor = 1, .slope = call.scale / call.softcap, .cap = call.softcap * kLog2E};
}

// How many of `most` rows take part in a head.
std::int64_t rows_in(const RowList& list, std::int64_t heads, std::int64_t batch, std::int64_t head,
                     std::int64_t most) {
  return list.rows == nullptr ? most : list.counts[batch * heads + head];
}

// One query tile of one head: its rows (none past the last that takes part), their intervals and the keys any
// of them can see.
class QueryTile {
 public:
  QueryTile(const AttentionForwardCall& call, std::int64_t batch, std::int64_t head, std::int64_t tile)
      : QueryTile(call, batch, head, tile, KeySpan{}) {
    hull_ = {std::numeric_limits<std::int32_t>::max(), 0};
    for (int i = 0; i < rows; ++i) {
      if (first[i] >= last[i]) continue;
      hull_.begin = std::min(hull_.begin, first[i]);
      hull_.end = std::max(hull_.end, last[i]);
    }
    find_ranges(call, batch, head, tile);
  }
  // With the hull of an earlier look at it.
  QueryTile(const AttentionForwardCall& call, std::int64_t batch, std::int64_t head, std::int64_t tile,
            KeySpan hull)
      : hull_(hull) {
    const AttentionSizes& sizes = call.sizes;
    const std::int64_t in_block = tile % sizes.parts() * sizes.tile_q();
    row = sizes.block_rows == 0 ? tile * kTileQ : tile / sizes.parts() * sizes.block_rows + in_block;
    std::int64_t count =
        std::min(sizes.tile_q(), rows_in(call.mask.queries, sizes.heads_q, batch, head, sizes.seq_q) - row);
    if (sizes.block_rows > 0) count = std::min(count, sizes.block_rows - in_block);
    rows = static_cast<int>(std::max<std::int64_t>(count, 0));
    const std::int64_t offset = batch * call.mask.batch_stride + head * call.mask.head_stride + row;
    first = call.mask.first + offset;
    last = call.mask.last + offset;
    find_ranges(call, batch, head, tile);
  }
  QueryTile(const QueryTile&) = delete;
  QueryTile& operator=(const QueryTile&) = delete;

  // How many key tiles before `tile` add to this query tile, of the even ones (sum 0) or the odd ones (1).
  [[nodiscard]] std::int32_t key_tiles_before(std::int64_t tile, std::int64_t sum) const {
    std::int64_t count = 0;
    std::int64_t counted = 0;  // key tiles below this one have been counted
    for (const KeySpan& range : ranges) {
      const KeySpan seen = clip(range);
      if (seen.begin >= seen.end) continue;
      const std::int64_t begin = std::max<std::int64_t>(seen.begin / kTileK, counted);
      const std::int64_t end = std::min<std::int64_t>(divide_up(seen.end, kTileK), tile);
      if (begin < end) count += (end + 1 - sum) / 2 - (begin + 1 - sum) / 2;
      counted = std::max(counted, end);
    }
    return static_cast<std::int32_t>(count);
  }
  [[nodiscard]] KeySpan clip(KeySpan range) const {
    return {std::max(range.begin, hull_.begin), std::min(range.end, hull_.end)};
  }

  [[nodiscard]] KeySpan hull() const { return hull_; }

  std::int64_t row;
  int rows;
  const std::int32_t* first;
  const std::int32_t* last;
  std::span<const KeySpan> ranges;

 private:
  void find_ranges(const AttentionForwardCall& call, std::int64_t batch, std::int64_t head,
                   std::int64_t tile) {
    if (hull_.begin >= hull_.end) return;
    ranges = {&hull_, 1};
    if (call.mask.ranges == nullptr) return;
    const AttentionSizes& sizes = call.sizes;
    const std::int64_t head_kv = head / (sizes.heads_q / sizes.heads_kv);
    const std::int64_t index =
        (batch * sizes.heads_kv + head_kv) * (sizes.q_tiles() / sizes.parts()) + tile / sizes.parts();
    const std::int64_t begin = call.mask.range_starts[index];
    ranges = {call.mask.ranges + begin, static_cast<std::size_t>(call.mask.range_starts[index + 1] - begin)};
  }

  KeySpan hull_;
};

std::int64_t padded_columns(const AttentionSizes& sizes) {
  return Columns::of(sizes.head_dim, sizes.vectors).padded();
}

struct ForwardPieces {
  ForwardPieces(const AttentionSizes& sizes, std::byte* base) {
    Pieces pieces(base);
    heads = wave_heads(sizes, sizes.heads_q / sizes.heads_kv * sizes.q_tiles(), kForwardWave);
    keys_floats = sizes.k_tiles() * kTileK * sizes.head_dim;
    values_floats = sizes.k_tiles() * kTileK * padded_columns(sizes);
    scratch_floats = divide_up(forward_scratch(sizes.vectors, sizes.head_dim), kAlignFloats) * kAlignFloats;
    keys = pieces.take<float>(heads * keys_floats);
    values = pieces.take<float>(heads * values_floats);
    scratch = pieces.take<float>(sizes.threads * scratch_floats);
    bytes = pieces.bytes();
  }

  std::int64_t heads;  // of K/V in a wave
  std::int64_t keys_floats, values_floats, scratch_floats;
  float* keys;    // [heads] transposed
  float* values;  // [heads] rows
  float* scratch;
  std::int64_t bytes;
};

// The query tiles [begin, end) of a group's heads among which all are that see a key tile.
struct Visitors {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// Key tiles that have added to each sum of a query tile's dQ, and sums that are complete.
struct Turns {
  std::int32_t added[2];
  std::int32_t complete;
};

struct BackwardPieces {
  BackwardPieces(const AttentionSizes& sizes, std::byte* base) {
    Pieces pieces(base);
    const std::int64_t group = sizes.heads_q / sizes.heads_kv;
    const std::int64_t padded = padded_columns(sizes);
    heads = wave_heads(sizes, sizes.k_tiles(), kBackwardWave);
    key_tile_floats = kTileK * padded;
    key_panel_floats = std::int64_t{kTileK} * sizes.head_dim;
    query_tile_floats = kTileQ * padded;
    scratch_floats = divide_up(kBackwardScratch, kAlignFloats) * kAlignFloats;
    const std::int64_t k_tiles = heads * sizes.k_tiles();
    const std::int64_t q_tiles = heads * group * sizes.q_tiles();
    keys = pieces.take<float>(k_tiles * key_tile_floats);
    keys_transposed = pieces.take<float>(k_tiles * key_panel_floats);
    values_transposed = pieces.take<float>(k_tiles * key_panel_floats);
    query = pieces.take<float>(q_tiles * query_tile_floats);
    output_gradient = pieces.take<float>(q_tiles * query_tile_floats);
    query_gradient[0] = pieces.take<float>(q_tiles * query_tile_floats);
    query_gradient[1] = pieces.take<float>(q_tiles * query_tile_floats);
    row_shift = pieces.take<float>(q_tiles * kTileQ);
    row_dot = pieces.take<float>(q_tiles * kTileQ);
    turns = pieces.take<Turns>(q_tiles);
    hulls = pieces.take<KeySpan>(q_tiles);
    visitors = pieces.take<Visitors>(k_tiles);
    sink_gradient = pieces.take<float>(sizes.batch * sizes.heads_q * sizes.q_tiles());
    scratch = pieces.take<float>(sizes.threads * scratch_floats);
    gradients = pieces.take<float>(2 * key_tile_floats * sizes.threads);
    bytes = pieces.bytes();
  }

  std::int64_t heads;
  std::int64_t key_tile_floats, key_panel_floats, query_tile_floats, scratch_floats;
  float *keys, *keys_transposed, *values_transposed;  // per key tile of the wave
  float *query, *output_gradient;                     // per query tile of the wave
  float* query_gradient[2];                           // likewise, the two sums
  float *row_shift, *row_dot;                         // [query tiles of the wave][kTileQ]
  Turns* turns;                                       // [query tiles of the wave]
  KeySpan* hulls;                                     // [query tiles of the wave]
  Visitors* visitors;                                 // [key tiles of the wave]
  float* sink_gradient;                               // [batch, heads_q, query tiles]
  float* scratch;                                     // [threads]
  float* gradients;                                   // [threads] dK and dV of a key tile
  std::int64_t bytes;
};

void wait_for_turn(std::int32_t* turn, std::int32_t mine, const Worker& worker) {
  const std::atomic_ref<std::int32_t> now(*turn);
  // A turn is a fifth of a tile's work, tens of microseconds, unless its thread has lost its core.
  for (int spins = 0; now.load(std::memory_order_acquire) != mine; ++spins) {
    if (spins < 1000) continue;
    worker.poll();
    std::this_thread::yield();
  }
}

}  // namespace

std::int64_t forward_workspace_bytes(const AttentionSizes& sizes) {
  return ForwardPieces(sizes, nullptr).bytes;
}

std::int64_t backward_workspace_bytes(const AttentionSizes& sizes) {
  return BackwardPieces(sizes, nullptr).bytes;
}

void attention_forward(const AttentionForwardCall& call, std::span<std::byte> workspace,
                       const Stream& stream) {
  const AttentionKernels& kernels = attention_kernels(stream.device->simd);
  const AttentionSizes& sizes = call.sizes;
  const ForwardPieces pieces(sizes, workspace.data());
  check(pieces.bytes <= static_cast<std::int64_t>(workspace.size()),
        "attention forward needs a workspace of {} bytes, not {}", pieces.bytes, workspace.size());
  const std::int64_t group = sizes.heads_q / sizes.heads_kv;
  const std::int64_t padded = padded_columns(sizes);
  const std::int64_t kv_heads = sizes.batch * sizes.heads_kv;

  for (std::int64_t wave = 0; wave < kv_heads; wave += pieces.heads) {
    const std::int64_t heads = std::min(pieces.heads, kv_heads - wave);
    for_each_in_order(stream, sizes.threads, heads * sizes.k_tiles(), [&](std::int64_t item, const Worker&) {
      const std::int64_t head = item / sizes.k_tiles();
      const std::int64_t key = item % sizes.k_tiles() * kTileK;
      const std::int64_t batch = (wave + head) / sizes.heads_kv;
      const std::int64_t head_kv = (wave + head) % sizes.heads_kv;
      const int count = static_cast<int>(std::min<std::int64_t>(
          kTileK, rows_in(call.mask.keys, sizes.heads_q, batch, head_kv, sizes.seq_k) - key));
      if (count <= 0) return;
      kernels.pack_transposed(rows_of(call.key, sizes.dtype, call.mask.keys, batch, head_kv, key), count,
                              sizes.head_dim, pieces.keys + head * pieces.keys_floats + key * sizes.head_dim);
      kernels.pack_rows(rows_of(call.value, sizes.dtype, call.mask.keys, batch, head_kv, key), count, kTileK,
                        sizes.head_dim, pieces.values + head * pieces.values_floats + key * padded);
    });
    // Later rows first: under a causal mask they have the most keys.
    const std::int64_t query_heads = heads * group;
    for_each_in_order(
        stream, sizes.threads, query_heads * sizes.q_tiles(), [&](std::int64_t item, const Worker& worker) {
          const std::int64_t head = item % query_heads;
          const std::int64_t tile = sizes.q_tiles() - 1 - item / query_heads;
          const std::int64_t batch = (wave + head / group) / sizes.heads_kv;
          const std::int64_t head_q = (wave + head / group) % sizes.heads_kv * group + head % group;
          const QueryTile rows(call, batch, head_q, tile);
          if (rows.rows == 0) return;
          kernels.forward(
              {.query = rows_of(call.query, sizes.dtype, call.mask.queries, batch, head_q, rows.row),
               .keys = pieces.keys + head / group * pieces.keys_floats,
               .values = pieces.values + head / group * pieces.values_floats,
               .rows = rows.rows,
               .head_dim = sizes.head_dim,
               .first = rows.first,
               .last = rows.last,
               .ranges = rows.ranges.data(),
               .range_count = static_cast<std::int64_t>(rows.ranges.size()),
               .rule = score_rule(call),
               .sink = call.sinks == nullptr ? nullptr : call.sinks + head_q,
               .resume = call.resume,
               .scratch = pieces.scratch + worker.slot * pieces.scratch_floats,
               .output = rows_of(call.output, sizes.output_dtype, call.mask.queries, batch, head_q, rows.row),
               .lse = statistics_of(call.lse, call.mask.queries, batch, head_q, rows.row),
               .row_sum = statistics_of(call.row_sum, call.mask.queries, batch, head_q, rows.row)});
        });
  }
}

namespace {

// The backward of one wave of K/V heads.
class BackwardWave {
 public:
  BackwardWave(const AttentionBackwardCall& call, const BackwardPieces& pieces, const Stream& stream,
               std::int64_t first_head)
      : call_(call),
        forward_(call.forward),
        sizes_(call.forward.sizes),
        kernels_(attention_kernels(stream.device->simd)),
        pieces_(pieces),
        stream_(stream),
        first_head_(first_head),
        heads_(std::min(pieces.heads, sizes_.batch * sizes_.heads_kv - first_head)),
        group_(sizes_.heads_q / sizes_.heads_kv),
        rule_(score_rule(call.forward)) {}

  void run() const {
    const std::int64_t key_tiles = heads_ * sizes_.k_tiles();
    const std::int64_t query_tiles = heads_ * group_ * sizes_.q_tiles();
    for_each_in_order(stream_, sizes_.threads, key_tiles + query_tiles,
                      [&](std::int64_t item, const Worker&) {
                        item < key_tiles ? pack_keys(item) : pack_queries(item - key_tiles);
                      });
    find_visitors();
    // Early keys first: under a causal mask the most rows see them; and neighbours in the order belong to
    // different heads, so they seldom wait for each other.
    for_each_in_order(stream_, sizes_.threads, key_tiles, [&](std::int64_t item, const Worker& worker) {
      key_tile(item % heads_, item / heads_, worker);
    });
  }

 private:
  struct Head {
    std::int64_t batch, head_kv;
  };
  [[nodiscard]] Head head_at(std::int64_t head) const {
    return {(first_head_ + head) / sizes_.heads_kv, (first_head_ + head) % sizes_.heads_kv};
  }
  // Keys of a tile; none past the last that takes part.
  [[nodiscard]] int keys_in(std::int64_t batch, std::int64_t head_kv, std::int64_t tile) const {
    const std::int64_t keys = rows_in(forward_.mask.keys, sizes_.heads_q, batch, head_kv, sizes_.seq_k);
    return static_cast<int>(std::clamp<std::int64_t>(keys - tile * kTileK, 0, kTileK));
  }
  [[nodiscard]] RowsView queries_at(const HeadsView& view, DType dtype, std::int64_t batch, std::int64_t head,
                                    std::int64_t row) const {
    return rows_of(view, dtype, forward_.mask.queries, batch, head, row);
  }
  [[nodiscard]] RowsView keys_at(const HeadsView& view, DType dtype, std::int64_t batch, std::int64_t head,
                                 std::int64_t row) const {
    return rows_of(view, dtype, forward_.mask.keys, batch, head, row);
  }

  void pack_keys(std::int64_t item) const {
    const auto [batch, head_kv] = head_at(item / sizes_.k_tiles());
    const std::int64_t tile = item % sizes_.k_tiles();
    const int keys = keys_in(batch, head_kv, tile);
    const RowsView key = keys_at(forward_.key, sizes_.dtype, batch, head_kv, tile * kTileK);
    const RowsView value = keys_at(forward_.value, sizes_.dtype, batch, head_kv, tile * kTileK);
    kernels_.pack_rows(key, keys, kTileK, sizes_.head_dim, pieces_.keys + item * pieces_.key_tile_floats);
    kernels_.pack_transposed(key, keys, sizes_.head_dim,
                             pieces_.keys_transposed + item * pieces_.key_panel_floats);
    kernels_.pack_transposed(value, keys, sizes_.head_dim,
                             pieces_.values_transposed + item * pieces_.key_panel_floats);
  }

  void pack_queries(std::int64_t item) const {
    const std::int64_t head = item / sizes_.q_tiles();
    const std::int64_t tile = item % sizes_.q_tiles();
    const auto [batch, head_kv] = head_at(head / group_);
    const std::int64_t head_q = head_kv * group_ + head % group_;
    const QueryTile rows(forward_, batch, head_q, tile);
    pieces_.hulls[item] = rows.hull();
    const RowsView gradient =
        queries_at(call_.output_gradient, sizes_.output_gradient_dtype, batch, head_q, rows.row);
    kernels_.row_statistics(
        {.output = queries_at(forward_.output, sizes_.output_dtype, batch, head_q, rows.row),
         .output_gradient = gradient,
         .lse = statistics_of(forward_.lse, forward_.mask.queries, batch, head_q, rows.row),
         .lse_gradient = statistics_of(call_.lse_gradient, forward_.mask.queries, batch, head_q, rows.row),
         .sink = forward_.sinks == nullptr ? nullptr : forward_.sinks + head_q,
         .rows = rows.rows,
         .head_dim = sizes_.head_dim,
         .row_shift = pieces_.row_shift + item * kTileQ,
         .row_dot = pieces_.row_dot + item * kTileQ,
         .sink_gradient =
             pieces_.sink_gradient + (batch * sizes_.heads_q + head_q) * sizes_.q_tiles() + tile});
    kernels_.pack_rows(queries_at(forward_.query, sizes_.dtype, batch, head_q, rows.row), rows.rows, kTileQ,
                       sizes_.head_dim, pieces_.query + item * pieces_.query_tile_floats);
    kernels_.pack_rows(gradient, rows.rows, kTileQ, sizes_.head_dim,
                       pieces_.output_gradient + item * pieces_.query_tile_floats);
    pieces_.turns[item] = {};
    for (int sum = 0; sum < 2; ++sum) {
      std::memset(query_gradient(item, sum), 0,
                  static_cast<std::size_t>(pieces_.query_tile_floats) * sizeof(float));
      // A sum that no key tile will come to is complete: zeros.
      if (rows.key_tiles_before(sizes_.k_tiles(), sum) == 0) complete_sum(item, rows, batch, head_q);
    }
  }

  // For each key tile the query tiles that may see it: found once from the tiles' ranges, so that a key tile
  // of a narrow window does not ask every query tile of a long sequence.
  void find_visitors() const {
    for (std::int64_t head = 0; head < heads_; ++head) {
      const auto [batch, head_kv] = head_at(head);
      Visitors* visitors = pieces_.visitors + head * sizes_.k_tiles();
      std::fill_n(visitors, sizes_.k_tiles(), Visitors{std::numeric_limits<std::int32_t>::max(), 0});
      for (std::int64_t item = 0; item < group_ * sizes_.q_tiles(); ++item) {
        const auto tile = static_cast<std::int32_t>(item % sizes_.q_tiles());
        const std::int64_t head_q = head_kv * group_ + item / sizes_.q_tiles();
        const QueryTile rows(forward_, batch, head_q, tile,
                             pieces_.hulls[head * group_ * sizes_.q_tiles() + item]);
        for (const KeySpan& range : rows.ranges) {
          const KeySpan seen = rows.clip(range);
          if (seen.begin >= seen.end) continue;
          for (std::int64_t key = seen.begin / kTileK; key < divide_up(seen.end, kTileK); ++key) {
            visitors[key].begin = std::min(visitors[key].begin, tile);
            visitors[key].end = std::max(visitors[key].end, tile + 1);
          }
        }
      }
    }
  }

  [[nodiscard]] float* query_gradient(std::int64_t item, std::int64_t sum) const {
    return pieces_.query_gradient[sum] + item * pieces_.query_tile_floats;
  }

  // One sum of a query tile's dQ has its last part. The second to be complete stores both.
  void complete_sum(std::int64_t item, const QueryTile& rows, std::int64_t batch, std::int64_t head_q) const {
    const std::atomic_ref<std::int32_t> complete(pieces_.turns[item].complete);
    if (complete.fetch_add(1, std::memory_order_acq_rel) == 0) return;
    float* even = query_gradient(item, 0);
    const float* odd = query_gradient(item, 1);
    for (std::int64_t i = 0; i < pieces_.query_tile_floats; ++i) even[i] += odd[i];
    kernels_.store_rows(
        even, rows.rows, kTileQ, sizes_.head_dim, forward_.scale, sizes_.add_query_gradient,
        queries_at(call_.query_gradient, sizes_.query_gradient_dtype, batch, head_q, rows.row));
  }

  // dK and dV of one key tile, over all query heads of the group, and its parts of their dQ.
  void key_tile(std::int64_t head, std::int64_t tile, const Worker& worker) const {
    const auto [batch, head_kv] = head_at(head);
    const int keys = keys_in(batch, head_kv, tile);
    if (keys == 0) return;
    const std::int64_t item = head * sizes_.k_tiles() + tile;
    const Visitors visitors = pieces_.visitors[item];
    float* key_gradient = pieces_.gradients + worker.slot * 2 * pieces_.key_tile_floats;
    float* value_gradient = key_gradient + pieces_.key_tile_floats;
    std::memset(key_gradient, 0, static_cast<std::size_t>(2 * pieces_.key_tile_floats) * sizeof(float));
    for (std::int64_t member = 0; member < group_; ++member) {
      const std::int64_t head_q = head_kv * group_ + member;
      for (std::int64_t i = visitors.begin; i < visitors.end; ++i) {
        const std::int64_t query_item = (head * group_ + member) * sizes_.q_tiles() + i;
        const QueryTile rows(forward_, batch, head_q, i, pieces_.hulls[query_item]);
        const std::int64_t offset = query_item * pieces_.query_tile_floats;
        BackwardTile pair{.query = pieces_.query + offset,
                          .output_gradient = pieces_.output_gradient + offset,
                          .row_shift = pieces_.row_shift + query_item * kTileQ,
                          .row_dot = pieces_.row_dot + query_item * kTileQ,
                          .keys = pieces_.keys + item * pieces_.key_tile_floats,
                          .keys_transposed = pieces_.keys_transposed + item * pieces_.key_panel_floats,
                          .values_transposed = pieces_.values_transposed + item * pieces_.key_panel_floats,
                          .rows = rows.rows,
                          .head_dim = sizes_.head_dim,
                          .first = rows.first,
                          .last = rows.last,
                          .range = {},
                          .tile_key = static_cast<std::int32_t>(tile * kTileK),
                          .rule = rule_,
                          .scratch = pieces_.scratch + worker.slot * pieces_.scratch_floats,
                          .key_gradient = key_gradient,
                          .value_gradient = value_gradient,
                          .query_gradient = query_gradient(query_item, tile % 2)};
        std::int32_t* added = &pieces_.turns[query_item].added[tile % 2];
        const std::int32_t turn = rows.key_tiles_before(tile, tile % 2);
        bool waited = false;
        for (const KeySpan& range : rows.ranges) {
          const KeySpan seen = rows.clip(range);
          pair.range = {std::max(seen.begin, pair.tile_key), std::min(seen.end, pair.tile_key + kTileK)};
          if (pair.range.begin >= pair.range.end) continue;
          kernels_.backward_key_value(pair);
          if (!waited) wait_for_turn(added, turn, worker);
          waited = true;
          kernels_.backward_query(pair);
        }
        if (!waited) continue;
        if (rows.key_tiles_before(sizes_.k_tiles(), tile % 2) == turn + 1) {
          complete_sum(query_item, rows, batch, head_q);
        }
        std::atomic_ref<std::int32_t>(*added).store(turn + 1, std::memory_order_release);
        worker.poll();
      }
    }
    kernels_.store_rows(
        key_gradient, keys, kTileK, sizes_.head_dim, forward_.scale, sizes_.add_key_gradients,
        keys_at(call_.key_gradient, sizes_.key_gradient_dtype, batch, head_kv, tile * kTileK));
    kernels_.store_rows(
        value_gradient, keys, kTileK, sizes_.head_dim, 1, sizes_.add_key_gradients,
        keys_at(call_.value_gradient, sizes_.key_gradient_dtype, batch, head_kv, tile * kTileK));
  }

  const AttentionBackwardCall& call_;
  const AttentionForwardCall& forward_;
  const AttentionSizes& sizes_;
  const AttentionKernels& kernels_;
  const BackwardPieces& pieces_;
  const Stream& stream_;
  std::int64_t first_head_;
  std::int64_t heads_;
  std::int64_t group_;
  ScoreRule rule_;
};

}  // namespace

void attention_backward(const AttentionBackwardCall& call, std::span<std::byte> workspace,
                        const Stream& stream) {
  const AttentionSizes& sizes = call.forward.sizes;
  const BackwardPieces pieces(sizes, workspace.data());
  check(pieces.bytes <= static_cast<std::int64_t>(workspace.size()),
        "attention backward needs a workspace of {} bytes, not {}", pieces.bytes, workspace.size());
  for (std::int64_t head = 0; head < sizes.batch * sizes.heads_kv; head += pieces.heads) {
    BackwardWave(call, pieces, stream, head).run();
  }
  if (call.forward.sinks == nullptr) return;
  // dSink <- the sum over batch and query tiles, in that order
  for (std::int64_t head = 0; head < sizes.heads_q; ++head) {
    float sum = 0;
    for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
      const float* parts = pieces.sink_gradient + (batch * sizes.heads_q + head) * sizes.q_tiles();
      for (std::int64_t tile = 0; tile < sizes.q_tiles(); ++tile) sum += parts[tile];
    }
    call.sinks_gradient[head] = sum;
  }
}

}  // namespace headroom::cpu
