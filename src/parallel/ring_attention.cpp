#include "headroom/parallel/ring_attention.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "headroom/ops/elementwise.h"
#include "parallel/block_lists.h"
#include "parallel/ring_exchange.h"

namespace headroom {

namespace {

AttentionProblem chunk_of_pair(const AttentionProblem& of_ring, const ChunkPair& pair) {
  AttentionProblem part = of_ring;
  part.seq_q = pair.queries.size();
  part.seq_k = pair.keys.size();
  part.chunk = {.query_start = pair.queries.begin, .key_start = pair.keys.begin};
  part.sinks = of_ring.sinks && pair.first;
  return part;
}

}  // namespace

AttentionProblem problem_of_pair(const AttentionProblem& of_ring, std::int64_t most_tokens,
                                 const ChunkPair& pair, Pass pass, const DeviceDescription& device,
                                 std::string_view pinned) {
  AttentionProblem part = chunk_of_pair(of_ring, pair);
  if (pass == Pass::forward) {
    part.output_dtype = of_ring.dtype_of_sums();
    part.resume = !pair.first;
    return part;
  }
  part.gradient_dtype = of_ring.dtype_of_sums();
  part.add_gradients = true;
  // An f32 chunk of O and a chunk of K and V, of the member with most tokens. The workspace of backward is
  // held to that where heads can run one after the other: it would not shrink with the chunks by itself, as
  // smaller chunks have more heads under way at a time.
  const std::int64_t row = of_ring.heads_q * size_bytes(of_ring.dtype_of_sums()) +
                           2 * of_ring.heads_kv * size_bytes(of_ring.dtype);
  const std::int64_t chunk_bytes = checked_multiply(of_ring.batch * most_tokens, row * of_ring.head_dim);
  part.most_backward_bytes = std::min(of_ring.most_backward_bytes, chunk_bytes);
  // Open queries need sums of dQ beside it, as narrow gradients do anyway.
  if (of_ring.dtype_of_gradients() != of_ring.dtype_of_sums() &&
      attention_open_bytes(part, device, pinned) > 0) {
    part.open_queries = {.first = pair.first};
  }
  return part;
}

namespace {

// [batch, tokens, heads, head_dim] as [batch * tokens, heads * head_dim].
TensorView by_token(const TensorView& view) {
  return view.merge(2).merge(0);
}

void check_dense(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check(view.shape() == shape && view.dtype() == dtype && view.is_dense(),
        "ring attention: {} has to be {} of {}, dense; it is {} of {}", what, shape, name(dtype),
        view.shape(), name(view.dtype()));
}

// What both passes of a rank are made of.
class RingRank {
 public:
  RingRank(Context& context, const RingSchedule& schedule, const RingForward& views, std::string_view pinned,
           int rings)
      : context_(context),
        schedule_(schedule),
        problem_(schedule.problem()),
        views_(views),
        pinned_(pinned),
        place_(place_of(context, schedule, rings)),
        rank_(place_.member),
        pieces_(schedule.partition().pieces[static_cast<std::size_t>(rank_)]),
        tokens_(schedule.partition().tokens(rank_)),
        most_tokens_(schedule.most_tokens()) {
    check_dense(views.inputs.query, rows(problem_.heads_q), problem_.dtype, "query");
    check_dense(views.inputs.key, rows(problem_.heads_kv), problem_.dtype, "key");
    check_dense(views.inputs.value, rows(problem_.heads_kv), problem_.dtype, "value");
    check_dense(views.output, rows(problem_.heads_q), problem_.dtype_of_output(), "output");
    check_dense(views.lse, {problem_.batch * problem_.heads_q * tokens_}, problem_.dtype_of_sums(), "lse");
    last_pairs_.assign(pieces_.size(), nullptr);
    for_each_pair(
        [&](const ChunkPair& pair) { last_pairs_[static_cast<std::size_t>(pair.query_piece)] = &pair; });
  }

 protected:
  [[nodiscard]] Shape rows(std::int64_t heads) const {
    return {problem_.batch, tokens_, heads, problem_.head_dim};
  }
  [[nodiscard]] Tensor take(std::string_view name, Category category, DType dtype, const Shape& shape) const {
    return context_.allocate({.name = name, .category = category, .dtype = dtype, .shape = shape});
  }
  // The rows of an interval that is in one of the rank's own pieces.
  [[nodiscard]] TensorView own_rows(const TensorView& tensor, Piece piece) const {
    return tensor.slice(1, local_row(schedule_.partition(), rank_, piece.begin), piece.size());
  }

  // A ring of one member has one pair: the sequence with itself. Nothing is added to its results.
  [[nodiscard]] bool alone() const { return schedule_.ranks() == 1; }
  [[nodiscard]] AttentionProblem problem_of(const ChunkPair& pair, Pass pass) const {
    if (alone()) return chunk_of_pair(problem_, pair);
    AttentionProblem part =
        problem_of_pair(problem_, most_tokens_, pair, pass, context_.description(), pinned_);
    if (!may_be_open_) part.open_queries.reset();
    return part;
  }

  // body(pair), over everything that the rank computes.
  template <class Body>
  void for_each_pair(const Body& body) const {
    for (const ChunkPair& pair : schedule_.local(rank_)) body(pair);
    for (std::int64_t slot = 0; slot < schedule_.slots(); ++slot) {
      const Transfer* transfer = schedule_.received(rank_, slot);
      if (transfer == nullptr) continue;
      for (const ChunkPair& pair : transfer->pairs) body(pair);
    }
  }
  // The last pair that the rank computes of a piece of its queries; null where the piece is empty.
  [[nodiscard]] const ChunkPair* last_pair(std::int64_t query_piece) const {
    return last_pairs_[static_cast<std::size_t>(query_piece)];
  }
  // One workspace for every pair, and one block list.
  void take_workspace(Pass pass) {
    std::int64_t bytes = 0;
    std::int64_t tiles = 0;
    for_each_pair([&](const ChunkPair& pair) {
      bytes = std::max(
          bytes, attention_workspace_bytes(problem_of(pair, pass), context_.description(), pass, pinned_));
      if (problem_.mask.block_rows > 0) {
        tiles = std::max(tiles, divide_up(pair.queries.size(), problem_.mask.block_rows));
      }
    });
    workspace_ = take("attention workspace", Category::workspace, DType::u8, {bytes});
    if (problem_.mask.block_rows == 0) return;
    blocks_ = take("ring block lists", Category::workspace, DType::i32,
                   {problem_.batch * problem_.heads_kv * tiles * problem_.mask.max_blocks_per_row});
  }

  // The inputs of a pair, with K and V of its keys.
  [[nodiscard]] AttentionForward inputs_of(const ChunkPair& pair, const KeyValueViews& keys) {
    AttentionForward forward;
    forward.query = own_rows(views_.inputs.query, pair.queries);
    forward.key = keys.key;
    forward.value = keys.value;
    forward.sinks = views_.inputs.sinks;
    forward.document_starts = views_.inputs.document_starts;
    forward.lse = lse_of_piece(schedule_, rank_, views_.lse, pair.query_piece);
    if (problem_.mask.block_rows > 0) forward.blocks = list_blocks(pair);
    return forward;
  }
  // Keys of a pair within those that are at hand, the first of which has position `first`.
  [[nodiscard]] static KeyValueViews keys_of(const ChunkPair& pair, const KeyValueViews& at_hand,
                                             std::int64_t first) {
    return {at_hand.key.slice(1, pair.keys.begin - first, pair.keys.size()),
            at_hand.value.slice(1, pair.keys.begin - first, pair.keys.size())};
  }
  [[nodiscard]] KeyValueViews own_keys(const ChunkPair& pair, const TensorView& key,
                                       const TensorView& value) const {
    return {own_rows(key, pair.keys), own_rows(value, pair.keys)};
  }

  Context& context_;
  const RingSchedule& schedule_;
  const AttentionProblem& problem_;
  const RingForward& views_;
  std::string_view pinned_;
  RingPlace place_;
  int rank_;  // the member of the ring
  const std::vector<Piece>& pieces_;
  std::int64_t tokens_;
  std::int64_t most_tokens_;  // of a member
  Tensor workspace_;
  bool may_be_open_ = true;  // queries, in backward

 private:
  static RingPlace place_of(const Context& context, const RingSchedule& schedule, int rings) {
    const Ranks ranks = context.ranks();
    check(rings > 0 && ranks.count % checked_multiply(schedule.ranks(), rings) == 0,
          "the schedule is for {} x {} ranks, and there are {}", schedule.ranks(), rings, ranks.count);
    const int place = ranks.rank % (schedule.ranks() * rings);
    check(!schedule.problem().sinks || ranks.count == schedule.ranks() * rings,
          "gradients of sinks are added over all ranks, and {} ranks are more than one group", ranks.count);
    return {.member = place / rings, .ring = place % rings, .rings = rings, .first = ranks.rank - place};
  }

  // The lists of the pair's queries, with its own key tiles alone, counted from its first.
  [[nodiscard]] TensorView list_blocks(const ChunkPair& pair) {
    const Mask& mask = problem_.mask;
    const std::int64_t tiles = divide_up(pair.queries.size(), mask.block_rows);
    const Shape shape{problem_.batch, problem_.heads_kv, tiles, mask.max_blocks_per_row};
    const TensorView lists = blocks_.view().slice(0, 0, shape.elements()).reshape(shape);
    std::int64_t first_tile = 0;  // of the rank's lists
    for (std::int64_t i = 0; i < pair.query_piece; ++i) {
      first_tile += divide_up(pieces_[static_cast<std::size_t>(i)].size(), mask.block_rows);
    }
    const std::int64_t begin = pair.keys.begin / mask.block_columns;
    const std::int64_t end = divide_up(pair.keys.end, mask.block_columns);
    divide_block_lists(context_, {views_.inputs.blocks.slice(2, first_tile, tiles), lists, begin, end});
    return lists;
  }

  Tensor blocks_;
  std::vector<const ChunkPair*> last_pairs_;  // [query piece]
};

class RingForwardRank : private RingRank {
 public:
  using RingRank::RingRank;

  void run() {
    // The output is summed up in f32, in place where it is f32.
    const bool narrows = !alone() && problem_.dtype_of_output() != problem_.dtype_of_sums();
    if (narrows) {
      sum_ = take("ring output", Category::attention, problem_.dtype_of_sums(), rows(problem_.heads_q));
    }
    const TensorView& output = narrows ? sum_.view() : views_.output;
    if (stays_open()) {
      row_sum_ = take("ring row sums", Category::attention, DType::f64, views_.lse.shape());
      zero(context_, row_sum_);
    }
    KeyExchange keys(context_, schedule_, place_, Pass::forward, views_.inputs.key, views_.inputs.value);
    take_workspace(Pass::forward);

    keys.start();
    for (const ChunkPair& pair : schedule_.local(rank_)) {
      compute(pair, own_keys(pair, views_.inputs.key, views_.inputs.value), output);
    }
    for (std::int64_t slot = 0; slot < schedule_.slots(); ++slot) {
      const Transfer* transfer = schedule_.received(rank_, slot);
      const KeyValueViews received = keys.receive(slot);
      if (transfer == nullptr) continue;
      for (const ChunkPair& pair : transfer->pairs) {
        compute(pair, keys_of(pair, received, transfer->keys.begin), output);
      }
    }
    keys.finish();
  }

 private:
  void compute(const ChunkPair& pair, const KeyValueViews& keys, const TensorView& output) {
    AttentionForward forward = inputs_of(pair, keys);
    forward.output = own_rows(output, pair.queries);
    if (stays_open()) forward.row_sum = lse_of_piece(schedule_, rank_, row_sum_, pair.query_piece);
    attention_forward(context_, problem_of(pair, Pass::forward), forward, workspace_, pinned_);
    if (stays_open() && last_pair(pair.query_piece) == &pair) close(pair.query_piece, output);
  }

  // The softmax stays open between chunks, so that the error does not grow with the number of ranks. The
  // reference in f64 divides after each chunk.
  [[nodiscard]] bool stays_open() const { return !alone() && problem_.dtype_of_sums() == DType::f32; }
  // Writes the output of a piece whose last pair was computed.
  void close(std::int64_t query_piece, const TensorView& output) {
    const Piece& piece = pieces_[static_cast<std::size_t>(query_piece)];
    const auto statistics = [&](const TensorView& of_rank) {
      return lse_of_piece(schedule_, rank_, of_rank, query_piece);
    };
    close_attention(context_, {.output = own_rows(output, piece), .lse = statistics(views_.lse)},
                    statistics(row_sum_), own_rows(views_.output, piece));
  }

  Tensor sum_;
  Tensor row_sum_;
};

class RingBackwardRank : private RingRank {
 public:
  RingBackwardRank(Context& context, const RingSchedule& schedule, const RingBackward& views,
                   std::string_view pinned, int rings)
      : RingRank(context, schedule, views.forward, pinned, rings), backward_(views) {
    check_dense(views.output_gradient, rows(problem_.heads_q), problem_.dtype_of_output(), "output_gradient");
    check_gradient(views.query_gradient, problem_.heads_q, "query_gradient");
    check_gradient(views.key_gradient, problem_.heads_kv, "key_gradient");
    check_gradient(views.value_gradient, problem_.heads_kv, "value_gradient");
    // Open queries are closed into dQ itself, and kernels want its rows aligned.
    const TensorView& dq = views.query_gradient;
    may_be_open_ = dq.stride(1) * size_bytes(dq.dtype()) % problem_.row_alignment_bytes == 0;
    if (views.lse_gradient.elements() > 0) {
      check_dense(views.lse_gradient, {problem_.batch * problem_.heads_q * tokens_}, problem_.dtype_of_sums(),
                  "lse_gradient");
    }
  }

  void run() {
    const bool narrows = !alone() && problem_.dtype_of_gradients() != problem_.dtype_of_sums();
    const auto sums_of = [&](Tensor& own, std::string_view name, const TensorView& result) {
      if (narrows) own = take(name, Category::gradients, problem_.dtype_of_sums(), result.shape());
      return narrows ? own.view() : result;
    };
    take_open_queries();
    const TensorView query =
        open() ? backward_.query_gradient : sums_of(query_sum_, "ring dQ", backward_.query_gradient);
    const KeyValueViews sums{sums_of(key_sum_, "ring dK", backward_.key_gradient),
                             sums_of(value_sum_, "ring dV", backward_.value_gradient)};
    KeyExchange keys(context_, schedule_, place_, Pass::backward, views_.inputs.key, views_.inputs.value);
    GradientExchange gradients(context_, schedule_, place_, sums);
    take_workspace(Pass::backward);
    take_sinks();

    keys.start();
    if (!alone()) {
      if (!open()) zero(context_, by_token(query));
      for (const TensorView* view : {&sums.key, &sums.value}) zero(context_, by_token(*view));
    }
    for (const ChunkPair& pair : schedule_.local(rank_)) {
      compute(pair, own_keys(pair, views_.inputs.key, views_.inputs.value), query,
              own_keys(pair, sums.key, sums.value));
    }
    for (std::int64_t slot = 0; slot < schedule_.slots(); ++slot) {
      const Transfer* transfer = schedule_.received(rank_, slot);
      const KeyValueViews received = keys.receive(slot);
      if (transfer != nullptr) {
        const KeyValueViews added = gradients.begin(*transfer);
        for (const ChunkPair& pair : transfer->pairs) {
          compute(pair, keys_of(pair, received, transfer->keys.begin), query,
                  keys_of(pair, added, transfer->keys.begin));
        }
      }
      gradients.end(slot);
    }
    gradients.finish();
    keys.finish();
    if (narrows) {
      if (!open()) convert(context_, by_token(query), by_token(backward_.query_gradient));
      convert(context_, by_token(sums.key), by_token(backward_.key_gradient));
      convert(context_, by_token(sums.value), by_token(backward_.value_gradient));
    }
    add_sinks();
  }

 private:
  void compute(const ChunkPair& pair, const KeyValueViews& keys, const TensorView& query_gradient,
               const KeyValueViews& key_gradients) {
    AttentionBackward backward;
    backward.forward = inputs_of(pair, keys);
    backward.forward.output = own_rows(views_.output, pair.queries);
    backward.output_gradient = own_rows(backward_.output_gradient, pair.queries);
    if (backward_.lse_gradient.elements() > 0) {
      backward.lse_gradient = lse_of_piece(schedule_, rank_, backward_.lse_gradient, pair.query_piece);
    }
    backward.query_gradient = own_rows(query_gradient, pair.queries);
    backward.key_gradient = key_gradients.key;
    backward.value_gradient = key_gradients.value;
    if (problem_.sinks) backward.sinks_gradient = sinks_.view().select(0, pair.query_piece + 1);
    AttentionProblem problem = problem_of(pair, Pass::backward);
    if (problem.open_queries) {
      const auto piece = static_cast<std::size_t>(pair.query_piece);
      problem.open_queries->last = last_pair(pair.query_piece) == &pair;
      backward.open =
          open_.view().slice(0, open_begins_[piece], open_begins_[piece + 1] - open_begins_[piece]);
    }
    attention_backward(context_, problem, backward, workspace_, pinned_);
  }

  // Where the implementation keeps dQ between the pairs of a piece: the memory for it, one piece after the
  // other.
  void take_open_queries() {
    open_begins_.assign(1, 0);
    bool some_closed = false;
    for (std::int64_t piece = 0; piece < std::ssize(pieces_); ++piece) {
      const ChunkPair* last = last_pair(piece);
      std::int64_t bytes = 0;
      if (last != nullptr) {
        const AttentionProblem problem = problem_of(*last, Pass::backward);
        if (problem.open_queries) bytes = attention_open_bytes(problem, context_.description(), pinned_);
        some_closed |= bytes == 0;
      }
      open_begins_.push_back(open_begins_.back() + bytes);
    }
    check(!open() || !some_closed, "ring attention: of a rank's pieces all have open queries, or none has");
    if (open()) open_ = take("ring dQ", Category::gradients, DType::u8, {open_begins_.back()});
  }
  [[nodiscard]] bool open() const { return open_begins_.back() > 0; }

  // Other heads may lie between those of one token and of the next.
  void check_gradient(const TensorView& view, std::int64_t heads, std::string_view what) const {
    const DType dtype = problem_.dtype_of_gradients();
    check(view.shape() == rows(heads) && view.dtype() == dtype,
          "ring attention: {} has to be {} of {}; it is {} of {}", what, rows(heads), name(dtype),
          view.shape(), name(view.dtype()));
    const bool side_by_side =
        view.is_dense() || (dtype != DType::f64 && view.stride(3) == 1 && view.stride(2) == view.extent(3) &&
                            (view.extent(0) == 1 || view.stride(0) == view.extent(1) * view.stride(1)));
    check(side_by_side,
          "ring attention: {} of {} has strides {}, {}, {} and {}; the heads of a token have to lie side by "
          "side, and tokens equally far apart",
          what, view.shape(), view.stride(0), view.stride(1), view.stride(2), view.stride(3));
  }
  // dSink of every piece, after their sum; then that of all rings.
  void take_sinks() {
    if (!problem_.sinks) return;
    sinks_ = take("ring dSink of pieces", Category::gradients, DType::f32,
                  {std::ssize(pieces_) + 1, problem_.heads_q});
    sinks_sum_ = take("ring dSink", Category::gradients, DType::f32, {problem_.heads_q * place_.rings});
  }
  void add_sinks() {
    if (!problem_.sinks) return;
    zero(context_, sinks_sum_);  // also for the heads of other rings
    const TensorView own = sinks_sum_.view().slice(0, place_.ring * problem_.heads_q, problem_.heads_q);
    for (std::int64_t piece = 0; piece < std::ssize(pieces_); ++piece) {
      add(context_, own, sinks_.view().select(0, piece + 1), own);
    }
    context_.all_reduce(sinks_sum_);
    convert(context_, sinks_sum_, backward_.sinks_gradient);
  }

  const RingBackward& backward_;
  Tensor query_sum_, key_sum_, value_sum_, sinks_, sinks_sum_;
  std::vector<std::int64_t> open_begins_;  // [piece], then the end
  Tensor open_;
};

}  // namespace

TensorView lse_of_piece(const RingSchedule& schedule, int rank, const TensorView& lse, std::int64_t piece) {
  const AttentionProblem& problem = schedule.problem();
  const std::vector<Piece>& pieces = schedule.partition().pieces[static_cast<std::size_t>(rank)];
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < piece; ++i) before += pieces[static_cast<std::size_t>(i)].size();
  const Shape shape{problem.batch, problem.heads_q, pieces[static_cast<std::size_t>(piece)].size()};
  return lse.slice(0, problem.batch * problem.heads_q * before, shape.elements()).reshape(shape);
}

void ring_attention_forward(Context& context, const RingSchedule& schedule, const RingForward& views,
                            std::string_view pinned, int rings) {
  RingForwardRank(context, schedule, views, pinned, rings).run();
}

void ring_attention_backward(Context& context, const RingSchedule& schedule, const RingBackward& views,
                             std::string_view pinned, int rings) {
  RingBackwardRank(context, schedule, views, pinned, rings).run();
}

}  // namespace headroom
