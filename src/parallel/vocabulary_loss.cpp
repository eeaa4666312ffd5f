#include "headroom/parallel/vocabulary_loss.h"

#include <algorithm>
#include <numeric>

#include "headroom/core/checked.h"
#include "loss/slice.h"

namespace headroom {
namespace {

// Where nobody says: so many bytes of a chunk, which the logits of one rank alone may take. With many ranks
// the hidden states of a chunk are more than its logits.
constexpr std::int64_t kCpuChunkBytes = 224LL << 20;
constexpr std::int64_t kGpuChunkBytes = 1484LL << 20;
constexpr std::int64_t kLeastTokens = 96;  // a tile of the product

std::int64_t rank_count(const VocabularyLoss& loss) {
  return std::ssize(loss.rank_tokens);
}
std::int64_t most_tokens(const VocabularyLoss& loss) {
  return std::ranges::max(loss.rank_tokens);
}
std::int64_t all_tokens(const VocabularyLoss& loss) {
  return std::accumulate(loss.rank_tokens.begin(), loss.rank_tokens.end(), std::int64_t{0});
}

std::int64_t fast_chunk(const VocabularyLoss& loss, const DeviceDescription& device) {
  const bool gpu = device.kind == DeviceKind::cuda;
  const std::int64_t element = gpu ? size_bytes(loss.problem.dtype) : size_bytes(DType::f32);
  // Of the largest slice, so that every rank has the same chunks.
  const std::int64_t words = divide_up(loss.problem.vocab, rank_count(loss));
  const std::int64_t gathered =
      loss.problem.hidden * (2 * size_bytes(loss.problem.dtype) + size_bytes(DType::f32));
  const std::int64_t fit = (gpu ? kGpuChunkBytes : kCpuChunkBytes) / (words * element + gathered);
  return std::clamp(fit / kLeastTokens * kLeastTokens, kLeastTokens,
                    std::max(all_tokens(loss), kLeastTokens));
}

// How all ranks' tokens are cut into chunks: so many of each rank at a time.
class TokenChunks {
 public:
  TokenChunks(const VocabularyLoss& loss, const DeviceDescription& device) : tokens_(loss.rank_tokens) {
    const std::int64_t asked =
        loss.problem.chunk_tokens == 0 ? fast_chunk(loss, device) : loss.problem.chunk_tokens;
    of_rank_ = std::clamp<std::int64_t>(divide_up(asked, rank_count(loss)), 1,
                                        std::max<std::int64_t>(most_tokens(loss), 1));
  }

  [[nodiscard]] std::int64_t count() const { return divide_up(std::ranges::max(tokens_), of_rank_); }
  // The most tokens of one rank, and of all.
  [[nodiscard]] std::int64_t of_rank() const { return of_rank_; }
  [[nodiscard]] std::int64_t of_all() const {
    std::int64_t sum = 0;
    for (const std::int64_t tokens : tokens_) sum += std::min(tokens, of_rank_);
    return sum;
  }
  // A rank's tokens of a chunk.
  [[nodiscard]] std::int64_t begin(std::int64_t chunk) const { return chunk * of_rank_; }
  [[nodiscard]] std::int64_t tokens(std::int64_t chunk, std::size_t rank) const {
    return std::clamp<std::int64_t>(tokens_[rank] - begin(chunk), 0, of_rank_);
  }

 private:
  const std::vector<std::int64_t>& tokens_;
  std::int64_t of_rank_;
};

void validate(const VocabularyLoss& loss, const Ranks& ranks) {
  const LossProblem& problem = loss.problem;
  headroom::validate(problem);
  check(std::ssize(loss.rank_tokens) == ranks.count, "tokens of {} ranks are given, and there are {}",
        loss.rank_tokens.size(), ranks.count);
  const std::int64_t own = loss.rank_tokens[static_cast<std::size_t>(ranks.rank)];
  check(own == problem.tokens, "rank {} has {} tokens, the problem says {}", ranks.rank, own, problem.tokens);
  check(problem.reduction == Reduction::mean && !problem.shift && !problem.token_weights,
        "over a divided vocabulary the loss is a mean over a rank's labels, without shift or weights of "
        "tokens");
  check(problem.chunk_vocab == 0, "a divided vocabulary is not cut into chunks of {} words; accepted: 0",
        problem.chunk_vocab);
  check(
      loss.slice.first >= 0 && loss.slice.words >= 0 && loss.slice.first + loss.slice.words <= problem.vocab,
      "words {} to {} are not a slice of a vocabulary of {}", loss.slice.first,
      loss.slice.first + loss.slice.words, problem.vocab);
}

void check_view(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check(view.shape() == shape && view.dtype() == dtype && view.is_dense(),
        "{} is {} of {}; it has to be dense {} of {}", what, name(view.dtype()), view.shape(), name(dtype),
        shape);
}

SliceCall slice_call(const VocabularyLoss& loss, const TokenChunks& chunks, const LossForward& forward,
                     const LossBackward* backward) {
  const LossProblem& problem = loss.problem;
  SliceCall call{.problem = problem,
                 .slice = loss.slice,
                 .ranks = rank_count(loss),
                 .chunk_tokens = chunks.of_all(),
                 .hidden = forward.hidden,
                 .labels = forward.labels,
                 .weight = forward.weight,
                 .loss = forward.loss,
                 .loss_gradient = {},
                 .hidden_gradient = {},
                 .weight_gradient = {}};
  const Shape hidden{problem.tokens, problem.hidden};
  const Shape weight{loss.slice.words, problem.hidden};
  check_view(call.hidden, hidden, problem.dtype, "hidden");
  check_view(call.labels, {problem.tokens}, DType::i32, "labels");
  check_view(call.weight, weight, problem.dtype, "weight");
  check_view(call.loss, {1}, DType::f32, "loss");
  if (backward == nullptr) return call;
  call.loss_gradient = backward->loss_gradient;
  call.hidden_gradient = backward->hidden_gradient;
  call.weight_gradient = backward->weight_gradient;
  check_view(call.loss_gradient, {1}, DType::f32, "loss_gradient");
  check_view(call.hidden_gradient, hidden, problem.dtype, "hidden_gradient");
  if (loss.slice.words > 0) check_view(call.weight_gradient, weight, DType::f32, "weight_gradient");
  return call;
}

// Sizes of what the loop over chunks takes before it starts.
struct LoopBytes {
  LoopBytes(const VocabularyLoss& loss, const TokenChunks& chunks, Pass pass) {
    const std::int64_t all = chunks.of_all();
    hidden = checked_multiply(all * loss.problem.hidden, size_bytes(loss.problem.dtype));
    labels = all * size_bytes(DType::i32);
    statistics = all * kTokenFloats * size_bytes(DType::f32);
    parts = rank_count(loss) * chunks.of_rank() * kTokenFloats * size_bytes(DType::f32);
    if (pass == Pass::forward) return;
    rules = statistics;
    gradient = checked_multiply(all * loss.problem.hidden, size_bytes(DType::f32));
    sum = reduction_workspace_bytes(static_cast<int>(rank_count(loss)), gradient);
  }
  [[nodiscard]] std::int64_t all() const {
    return 2 * (hidden + labels) + statistics + parts + rules + gradient + sum;
  }

  std::int64_t hidden = 0;      // twice: a chunk is gathered while one before it is used
  std::int64_t labels = 0;      // twice
  std::int64_t statistics = 0;  // of this rank's words
  std::int64_t parts = 0;       // of every rank's words, for this rank's tokens
  std::int64_t rules = 0;
  std::int64_t gradient = 0;
  std::int64_t sum = 0;
};

// What the rank sends and receives, in all chunks.
Traffic traffic_of(const VocabularyLoss& loss, Pass pass) {
  const std::int64_t others = rank_count(loss) - 1;
  const std::int64_t own = loss.problem.tokens;
  const std::int64_t rest = all_tokens(loss) - own;
  const std::int64_t token = kTokenFloats * size_bytes(DType::f32);
  const std::int64_t gathered = loss.problem.hidden * size_bytes(loss.problem.dtype) + size_bytes(DType::i32);
  Traffic traffic{.sent_bytes = others * own * gathered + rest * token,
                  .received_bytes = rest * gathered + others * own * token};
  if (pass == Pass::forward) return traffic;
  const std::int64_t summed = loss.problem.hidden * size_bytes(DType::f32);
  traffic.sent_bytes += others * own * token + rest * summed;
  traffic.received_bytes += rest * token + others * own * summed;
  return traffic;
}

// Messages that wait for one another: three exchanges of a chunk, and the rounds of its sum.
std::int64_t rounds_of(const VocabularyLoss& loss, const TokenChunks& chunks, const LoopBytes& bytes,
                       Pass pass) {
  if (pass == Pass::forward) return 2 * chunks.count();
  const std::int64_t own = chunks.of_rank() * loss.problem.hidden * size_bytes(DType::f32);
  const std::int64_t of_round = std::max<std::int64_t>(bytes.sum / 2 / (rank_count(loss) - 1), 1);
  return chunks.count() * (3 + divide_up(own, of_round));
}

class Loop {
 public:
  struct Buffers {
    std::byte* hidden[2];
    std::byte* labels[2];
    std::byte* statistics;
    std::byte* parts;
    std::byte* rules;
    std::byte* gradient;
    std::span<std::byte> sum;
  };

  Loop(const SliceCall& call, const SliceRow& row, const TokenChunks& chunks, const Buffers& buffers,
       const TensorView& workspace, Pass pass, Communicator& communicator, const Stream& stream)
      : call_(call),
        row_(row),
        chunks_(chunks),
        buffers_(buffers),
        workspace_(workspace),
        pass_(pass),
        communicator_(communicator),
        rank_(static_cast<std::size_t>(communicator.ranks().rank)),
        stream_(stream) {}

  void run() {
    row_.begin(call_, pass_, workspace_, stream_);
    MessageGroup arriving = start(0);
    for (std::int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      communicator_.wait(arriving);
      if (chunk + 1 < chunks_.count()) arriving = start(chunk + 1);
      run_chunk(chunk);
    }
    row_.end(call_, pass_, workspace_, stream_);
  }

 private:
  // Tokens of a chunk that lie before those of a rank.
  [[nodiscard]] std::int64_t before(std::int64_t chunk, std::size_t rank) const {
    std::int64_t tokens = 0;
    for (std::size_t r = 0; r < rank; ++r) tokens += chunks_.tokens(chunk, r);
    return tokens;
  }
  // All tokens of a chunk.
  [[nodiscard]] SliceChunk all_of(std::int64_t chunk) const {
    const std::int64_t count = before(chunk, ranks());
    const std::int64_t hidden = call_.problem.hidden;
    return {.hidden = {buffers_.hidden[chunk % 2], call_.problem.dtype, {count, hidden}},
            .labels = {buffers_.labels[chunk % 2], DType::i32, {count}},
            .statistics = {buffers_.statistics, DType::f32, {count, kTokenFloats}},
            .rules = {buffers_.rules, DType::f32, {count, kTokenFloats}},
            .hidden_gradient = {buffers_.gradient, DType::f32, {count, hidden}}};
  }
  // Those of one rank.
  [[nodiscard]] SliceChunk part_of(const SliceChunk& all, std::int64_t chunk, std::size_t rank) const {
    const std::int64_t first = before(chunk, rank);
    const std::int64_t count = chunks_.tokens(chunk, rank);
    return {.hidden = all.hidden.slice(0, first, count),
            .labels = all.labels.slice(0, first, count),
            .statistics = all.statistics.slice(0, first, count),
            .rules = all.rules.slice(0, first, count),
            .hidden_gradient = all.hidden_gradient.slice(0, first, count)};
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(call_.ranks); }

  static std::span<std::byte> bytes_of(const TensorView& view) {
    return {static_cast<std::byte*>(view.raw()), static_cast<std::size_t>(view.bytes())};
  }

  // Sends this rank's tokens of a chunk to all others and receives theirs.
  MessageGroup start(std::int64_t chunk) {
    const SliceChunk all = all_of(chunk);
    const SliceChunk own = part_of(all, chunk, rank_);
    if (own.count() > 0) row_.place(call_, chunks_.begin(chunk), own, stream_);
    sends_.clear();
    receives_.clear();
    for (std::size_t peer = 0; peer < ranks(); ++peer) {
      if (peer == rank_) continue;
      const int other = static_cast<int>(peer);
      const SliceChunk theirs = part_of(all, chunk, peer);
      if (own.count() > 0) {
        sends_.push_back({other, bytes_of(own.hidden)});
        sends_.push_back({other, bytes_of(own.labels)});
      }
      if (theirs.count() > 0) {
        receives_.push_back({other, bytes_of(theirs.hidden)});
        receives_.push_back({other, bytes_of(theirs.labels)});
      }
    }
    return communicator_.start(sends_, receives_, {"gathering of hidden states", chunk}, stream_);
  }

  // Elements of every rank's part, for rows of so many.
  std::span<const std::int64_t> counts(std::vector<std::int64_t>& into, std::int64_t chunk,
                                       std::int64_t elements) const {
    into.clear();
    for (std::size_t r = 0; r < ranks(); ++r) into.push_back(chunks_.tokens(chunk, r) * elements);
    return into;
  }

  void run_chunk(std::int64_t chunk) {
    const SliceChunk all = all_of(chunk);
    const SliceChunk own = part_of(all, chunk, rank_);
    row_.statistics(call_, all, pass_, workspace_, stream_);
    const TensorView parts(buffers_.parts, DType::f32, {call_.ranks, own.count(), kTokenFloats});
    own_counts_.assign(ranks(), own.count() * kTokenFloats);
    communicator_.all_to_all(parts, own_counts_, all.statistics, counts(counts_, chunk, kTokenFloats),
                             stream_, {"statistics of the loss", chunk});
    if (own.count() > 0) row_.judge(call_, parts, chunks_.begin(chunk), own, pass_, workspace_, stream_);
    if (pass_ == Pass::forward) return;
    communicator_.all_gather(all.rules, counts(counts_, chunk, kTokenFloats), stream_,
                             {"statistics of the loss", chunk});
    row_.gradients(call_, all, workspace_, stream_);
    communicator_.reduce_scatter(all.hidden_gradient, counts(counts_, chunk, call_.problem.hidden),
                                 buffers_.sum, stream_, {"gradients of hidden states", chunk});
    if (own.count() > 0) row_.store(call_, chunks_.begin(chunk), own.hidden_gradient, stream_);
  }

  const SliceCall& call_;
  const SliceRow& row_;
  const TokenChunks& chunks_;
  const Buffers& buffers_;
  TensorView workspace_;
  Pass pass_;
  Communicator& communicator_;
  std::size_t rank_;
  const Stream& stream_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> own_counts_;
};

void run(Context& context, const VocabularyLoss& loss, const LossForward& forward,
         const LossBackward* backward) {
  validate(loss, context.ranks());
  const Pass pass = backward == nullptr ? Pass::forward : Pass::backward;
  const TokenChunks chunks(loss, context.description());
  const SliceCall call = slice_call(loss, chunks, forward, backward);
  const SliceRow& row = pick(slice_rows(), call, context.description(), {}, "the loss");
  const LoopBytes bytes(loss, chunks, pass);
  const auto take = [&](std::string_view name, Category category, std::int64_t size) {
    return context.allocate({.name = name, .category = category, .dtype = DType::u8, .shape = {size}});
  };
  const auto take_message = [&](std::string_view name, std::int64_t size) {
    return take(name, Category::communication, size);
  };
  const Tensor workspace =
      take("loss workspace", Category::workspace, row.workspace_bytes(call, context.description(), pass));
  const Tensor hidden[] = {take_message("hidden states of all ranks", bytes.hidden),
                           take_message("hidden states of all ranks", bytes.hidden)};
  const Tensor labels[] = {take_message("labels of all ranks", bytes.labels),
                           take_message("labels of all ranks", bytes.labels)};
  const Tensor statistics = take_message("statistics of the loss", bytes.statistics);
  const Tensor parts = take_message("statistics of the loss", bytes.parts);
  Tensor rules, gradient, sum;
  if (pass == Pass::backward) {
    rules = take_message("statistics of the loss", bytes.rules);
    gradient = take_message("gradients of hidden states", bytes.gradient);
    sum = take_message("sum over ranks", bytes.sum);
  }
  const double product = 2.0 * static_cast<double>(all_tokens(loss)) *
                         static_cast<double>(loss.problem.hidden) * static_cast<double>(loss.slice.words);
  const Traffic traffic = traffic_of(loss, pass);
  // Every chunk reads the weight, twice in backward, where it also adds to the weight's gradient.
  const auto weight_bytes =
      static_cast<double>(call.weight.bytes() + (pass == Pass::backward ? call.weight_gradient.bytes() : 0));
  const auto hidden_bytes = static_cast<double>(call.hidden.bytes() * rank_count(loss));
  const Work work{
      .kernel = pass == Pass::forward ? "loss" : "loss backward",
      .row = row.name,
      .flops = pass == Pass::forward ? product : 3 * product,
      .bytes = (pass == Pass::forward ? 1 : 3) * hidden_bytes +
               static_cast<double>(chunks.count()) * (pass == Pass::forward ? 1 : 2) * weight_bytes,
      .workspace_bytes = workspace.view().bytes(),
      .sent_bytes = traffic.sent_bytes,
      .received_bytes = traffic.received_bytes,
      .rounds = rounds_of(loss, chunks, bytes, pass)};
  context.run_over_ranks(work, [&](Communicator& communicator, const Stream& stream) {
    const auto memory = [](const Tensor& tensor) { return static_cast<std::byte*>(tensor.view().raw()); };
    const Loop::Buffers buffers{.hidden = {memory(hidden[0]), memory(hidden[1])},
                                .labels = {memory(labels[0]), memory(labels[1])},
                                .statistics = memory(statistics),
                                .parts = memory(parts),
                                .rules = memory(rules),
                                .gradient = memory(gradient),
                                .sum = {memory(sum), static_cast<std::size_t>(bytes.sum)}};
    Loop(call, row, chunks, buffers, workspace, pass, communicator, stream).run();
  });
}

}  // namespace

void vocabulary_loss_forward(Context& context, const VocabularyLoss& loss, const LossForward& views) {
  run(context, loss, views, nullptr);
}

void vocabulary_loss_backward(Context& context, const VocabularyLoss& loss, const LossBackward& views) {
  run(context, loss, views.forward, &views);
}

std::int64_t fit_vocabulary_chunk(const VocabularyLoss& loss, const DeviceDescription& device,
                                  std::int64_t budget_bytes) {
  VocabularyLoss chunked = loss;
  chunked.problem.chunk_tokens = fast_chunk(loss, device);
  const auto added = [&] {
    const TokenChunks chunks(chunked, device);
    SliceCall call;
    call.problem = chunked.problem;
    call.slice = chunked.slice;
    call.ranks = rank_count(chunked);
    call.chunk_tokens = chunks.of_all();
    const SliceRow& row = pick(slice_rows(), call, device, {}, "the loss");
    return row.workspace_bytes(call, device, Pass::backward) +
           LoopBytes(chunked, chunks, Pass::backward).all();
  };
  while (chunked.problem.chunk_tokens > kLeastTokens && added() > budget_bytes) {
    chunked.problem.chunk_tokens = std::max(chunked.problem.chunk_tokens / 2, kLeastTokens);
  }
  return chunked.problem.chunk_tokens;
}

}  // namespace headroom
