#include "headroom/model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/loss.h"
#include "headroom/ops.h"
#include "headroom/parallel/vocabulary_loss.h"
#include "model/last_weights.h"
#include "model/layer.h"
#include "ops/f32_sum.h"

namespace headroom {
namespace {

// What layer `layer` keeps; LayerPolicy says the order of the kinds.
Keeping keeping_of(const LayerPolicy& policy, std::int64_t layer) {
  if (layer < policy.keep_all) return Keeping::all;
  layer -= policy.keep_all;
  if (layer < policy.keep_attention) return Keeping::attention;
  layer -= policy.keep_attention;
  if (layer >= policy.recompute) return Keeping::input;  // on the host
  return layer % policy.input_every == 0 ? Keeping::input : Keeping::nothing;
}

bool offloads(const LayerPolicy& policy, std::int64_t layer) {
  return layer >= policy.keep_all + policy.keep_attention + policy.recompute;
}

// A layer's input on the host, or on its way there or back.
struct Offloaded {
  Tensor host;
  Tensor device;  // while a copy is under way
  Ticket copied;
};

// One step of the decoder on one batch.
class Step {
 public:
  Step(Context& context, const Decoder& decoder, const RopeFrequencies& rope, const StepBatch& batch,
       const StepBuffers& buffers)
      : context_(context),
        decoder_(decoder),
        policy_(decoder.strategy().layers),
        weights_{context, decoder.shards(), buffers.weights, decoder.strategy().sharding == Sharding::full},
        gathered_(weights_),
        gradients_{context, decoder.shards(), buffers.gradients, weights_.divided,
                   buffers.gradients_are_zero},
        shared_{decoder.config(), decoder.rank_sizes(context.ranks()), decoder.strategy(), rope, batch} {}

  void train(const TensorView& loss, const TensorView& loss_gradient) {
    kept_.resize(static_cast<std::size_t>(layers()));
    offloaded_.resize(static_cast<std::size_t>(layers()));
    Tensor x;
    {
      const auto stage = context_.stage(StageKind::forward);
      x = embed();
      for (std::int64_t layer = 0; layer < layers(); ++layer) {
        const auto layer_stage = context_.stage(StageKind::layer, layer);
        kept(layer).put(Activation::input, std::move(x));
        x = run_layer(layer, keeping_of(policy_, layer));
        settle_offload(layer - 1);
        start_offload(layer);
      }
      settle_offload(layers() - 1);
    }
    Tensor gradient = hidden_tensor("hidden gradient");
    judge(std::move(x), gradient, loss, loss_gradient);
    const auto stage = context_.stage(StageKind::backward);
    start_return(layers() - 1);
    for (std::int64_t layer = layers() - 1; layer >= 0; --layer) {
      const auto layer_stage = context_.stage(StageKind::layer, layer);
      finish_return(layer);
      start_return(layer - 1);
      rebuild_input(layer);
      const auto next = layer > 0 ? std::optional(first_to_run(layer - 1)) : std::nullopt;
      with_layer(
          layer, next, [&](const Layer& run) { rebuild(layer, run); },
          [&](const Layer& run) {
            UnitGradients gradients(gradients_, unit_of_layer(layer));
            run.backward(kept(layer), gradient, LayerWeights(parameters(), gradients.part(), layer),
                         gradients.are_zero());
            summed_.take(std::move(gradients));
          });
    }
    summed_.start();
    const UnitGradients gradients(gradients_, kEmbeddingUnit);
    embedding_backward(context_, tokens(), gradient, gradients.part().of(parameters().embedding()),
                       config().pad_token);
    summed_.finish();
    gradients.add();  // nothing is left to compute meanwhile
    free_offloaded();
  }

  void evaluate(const TensorView& loss, const Decoder::Inspect& inspect) {
    const auto look = [&](std::string_view name, const Tensor& result) {
      if (inspect && !context_.phantom()) inspect(name, result);
    };
    kept_.resize(static_cast<std::size_t>(layers()));
    const auto stage = context_.stage(StageKind::forward);
    Tensor x = embed();
    look("embedding", x);
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      const auto layer_stage = context_.stage(StageKind::layer, layer);
      kept(layer).put(Activation::input, std::move(x));
      x = run_layer(layer, Keeping::nothing);
      look(fmt::format("layer {}", layer), x);
    }
    const LastWeights weights(weights_, decoder_);
    const Tensor normed = final_norm(x, hidden_rows("final norm rstd"), weights);
    look("final norm", normed);
    const LossForward views = loss_views(normed, loss, weights);
    if (divides_vocabulary()) {
      vocabulary_loss_forward(context_, vocabulary_loss(), views);
    } else {
      loss_forward(context_, loss_problem(), views);
    }
  }

 private:
  [[nodiscard]] const ModelConfig& config() const { return decoder_.config(); }
  [[nodiscard]] const ParameterTable& parameters() const { return decoder_.parameters(); }
  [[nodiscard]] std::int64_t layers() const { return config().layers; }
  [[nodiscard]] LayerActivations& kept(std::int64_t layer) { return kept_[static_cast<std::size_t>(layer)]; }

  [[nodiscard]] TensorView tokens() const { return shared_.batch.tokens.reshape({shared_.tokens()}); }
  [[nodiscard]] Tensor hidden_tensor(std::string_view name) const {
    return context_.allocate({.name = name,
                              .category = Category::activations,
                              .dtype = decoder_.strategy().compute_dtype,
                              .shape = {shared_.tokens(), config().hidden}});
  }
  [[nodiscard]] Tensor hidden_rows(std::string_view name) const {
    return context_.allocate({.name = name, .category = Category::activations, .shape = {shared_.tokens()}});
  }

  [[nodiscard]] Tensor embed() {
    const auto stage = context_.stage(StageKind::embedding);
    Tensor x = hidden_tensor("layer input");
    UnitWeights weights = gathered_.take(kEmbeddingUnit);
    gathered_.start(unit_of_layer(0));
    embedding_forward(context_, weights.wait().of(parameters().embedding()), tokens(), x);
    return x;
  }

  // attend(layer), then rest(layer), with the layer's weights. Meanwhile those of layer `next` arrive, where
  // there is one, and in backward the gradients of the layer before are added over the ranks. Whoever waits
  // for a message waits for all that were started before it: so where ranks exchange keys and values in
  // attend, these messages start after it. Then the MLP comes before the next exchange of keys and values,
  // forward and backward. The weights go first, because they are needed first.
  template <class Attend, class Rest>
  void with_layer(std::int64_t layer, std::optional<std::int64_t> next, const Attend& attend,
                  const Rest& rest) {
    UnitWeights unit = gathered_.take(unit_of_layer(layer));
    const bool exchanges = decoder_.schedule(layer) != nullptr;
    const auto start_messages = [&] {
      // GCC 12 takes *next for uninitialised.
      if (next) gathered_.start(unit_of_layer(next.value_or(layer)));
      summed_.start();
    };
    if (!exchanges) start_messages();
    const LayerWeights weights(parameters(), unit.wait(), layer);
    const LayerAttention attention{
        .problem = whole_attention(config(), decoder_.strategy().compute_dtype, decoder_.group_sizes(),
                                   decoder_.layer_mask(layer)),
        .over_ranks = decoder_.schedule(layer),
        .document_starts = shared_.batch.document_starts};
    const Layer run(context_, shared_, layer_spec(config(), layer), weights, attention);
    attend(run);
    if (exchanges) start_messages();
    rest(run);
  }

  // From the layer's input to the next one's. The layer after it runs next, unless it is the last.
  Tensor run_layer(std::int64_t layer, Keeping keeping) {
    Tensor output;
    const auto next = layer + 1 < layers() ? std::optional(layer + 1) : std::nullopt;
    with_layer(
        layer, next, [&](const Layer& run) { run.attend(kept(layer), keeping); },
        [&](const Layer& run) {
          if (keeping == Keeping::nothing) kept(layer).drop(Activation::input);
          output = run.feed_forward(kept(layer), keeping);
        });
    return output;
  }

  // The layer that runs first to make the input of this one: itself, or one before it.
  [[nodiscard]] std::int64_t first_to_run(std::int64_t layer) {
    while (!offloads(policy_, layer) && !kept(layer).has(Activation::input)) --layer;
    return layer;
  }

  // Makes the layer's input again where forward did not keep it.
  void rebuild_input(std::int64_t layer) {
    for (std::int64_t from = first_to_run(layer); from < layer; ++from) {
      // Inputs between stay: the layers before this one need them next.
      const auto stage = context_.stage(StageKind::again);
      kept(from + 1).put(Activation::input, run_layer(from, Keeping::input));
    }
  }
  // Makes again what else backward of this layer needs and forward did not keep.
  void rebuild(std::int64_t layer, const Layer& run) {
    if (keeping_of(policy_, layer) == Keeping::all) return;
    const Keeping rebuilt =
        decoder_.strategy().projections_again ? Keeping::rebuild_without_projections : Keeping::rebuild;
    run.attend(kept(layer), rebuilt);
  }

  Tensor final_norm(const Tensor& x, const Tensor& rstd, const LastWeights& weights) const {
    Tensor normed = hidden_tensor("final norm");
    rms_norm_forward(context_, {.x = x, .weight = weights.final_norm(), .y = normed, .rstd = rstd},
                     static_cast<float>(config().rms_epsilon));
    return normed;
  }

  // The loss, and the gradient of the last layer's result.
  void judge(Tensor x, const Tensor& gradient, const TensorView& loss,
             const TensorView& loss_gradient) const {
    const auto stage = context_.stage(StageKind::loss);
    const LastWeights weights(weights_, decoder_);
    const LastGradients gradients(gradients_, decoder_);
    const Tensor rstd = hidden_rows("final norm rstd");
    const Tensor normed = final_norm(x, rstd, weights);
    {
      const F32Sum sum(context_, gradients.output(), "output weight gradient in f32", true);
      const LossBackward views{.forward = loss_views(normed, loss, weights),
                               .loss_gradient = loss_gradient,
                               .hidden_gradient = gradient,
                               .weight_gradient = sum.view()};
      if (divides_vocabulary()) {
        vocabulary_loss_backward(context_, vocabulary_loss(), views);
      } else {
        loss_backward(context_, loss_problem(), views);
      }
      sum.store();
    }
    rms_norm_backward(context_,
                      {.x = x,
                       .weight = weights.final_norm(),
                       .rstd = rstd,
                       .y_gradient = gradient,
                       .x_gradient = gradient,
                       .weight_gradient = gradients.final_norm()},
                      Store::overwrite);
    // Waited for: to go on beside the last layer's backward, the whole gradient of the output weight and the
    // parts of its sum would have to stay while layers hold most.
    gradients.add();
  }

  [[nodiscard]] bool divides_vocabulary() const {
    return decoder_.strategy().loss_ranks == LossRanks::vocabulary;
  }
  [[nodiscard]] VocabularyLoss vocabulary_loss() const {
    const Ranks& ranks = context_.ranks();
    return {.problem = loss_problem(),
            .rank_tokens = decoder_.rank_tokens(),
            .slice = vocabulary_slice(parameters(), ranks.rank, ranks.count)};
  }
  [[nodiscard]] LossProblem loss_problem() const {
    return {.tokens = shared_.tokens(),
            .hidden = config().hidden,
            .vocab = config().vocab,
            .dtype = decoder_.strategy().compute_dtype,
            .chunk_tokens = decoder_.strategy().loss_chunk_tokens,
            .chunk_vocab = decoder_.strategy().loss_chunk_vocab};
  }
  [[nodiscard]] LossForward loss_views(const Tensor& normed, const TensorView& loss,
                                       const LastWeights& weights) const {
    return {.hidden = normed,
            .weight = weights.output(),
            .labels = shared_.batch.labels.reshape({shared_.tokens()}),
            .token_weights = {},
            .loss = loss,
            .saved = {}};
  }

  // Offloading: a layer's input goes to the host while the next layer runs, and comes back while the layer
  // after it is in backward.
  void start_offload(std::int64_t layer) {
    if (!offloads(policy_, layer)) return;
    Offloaded& input = offloaded_[static_cast<std::size_t>(layer)];
    input.device = kept(layer).take(Activation::input);
    input.host = context_.allocate({.name = "layer input on the host",
                                    .category = Category::staging,
                                    .dtype = decoder_.strategy().compute_dtype,
                                    .shape = input.device.view().shape(),
                                    .space = Space::host});
    copy(input.host, input.device, input);
  }
  void settle_offload(std::int64_t layer) {
    if (layer < 0 || !offloads(policy_, layer)) return;
    Offloaded& input = offloaded_[static_cast<std::size_t>(layer)];
    context_.wait(StreamId::main, input.copied);
    input.device.free();
  }
  void start_return(std::int64_t layer) {
    if (layer < 0 || !offloads(policy_, layer)) return;
    Offloaded& input = offloaded_[static_cast<std::size_t>(layer)];
    input.device = hidden_tensor("layer input");
    copy(input.device, input.host, input);
  }
  void finish_return(std::int64_t layer) {
    if (!offloads(policy_, layer)) return;
    Offloaded& input = offloaded_[static_cast<std::size_t>(layer)];
    context_.wait(StreamId::main, input.copied);
    kept(layer).put(Activation::input, std::move(input.device));
  }
  // The host frees its memory when it knows that the copies are done. The first layer's came last.
  void free_offloaded() {
    bool waited = false;
    for (Offloaded& input : offloaded_) {
      if (input.host.view().elements() == 0) continue;
      if (!std::exchange(waited, true)) context_.wait_on_host(input.copied);
      input.host.free();
    }
  }
  void copy(const Tensor& to, const Tensor& from, Offloaded& input) {
    context_.wait(StreamId::copy, context_.record(StreamId::main));
    context_.copy(StreamId::copy, to, from);
    input.copied = context_.record(StreamId::copy);
  }

  Context& context_;
  const Decoder& decoder_;
  const LayerPolicy& policy_;
  FlatBuffer weights_;
  UnitWeightsInTurn gathered_;
  FlatBuffer gradients_;
  UnitGradientsInTurn summed_;
  LayerStep shared_;
  std::vector<LayerActivations> kept_;
  std::vector<Offloaded> offloaded_;
};

void check_batch(const Decoder& decoder, const Ranks& ranks, const StepBatch& batch) {
  const RankSizes sizes = decoder.rank_sizes(ranks);
  const auto dense = [](const TensorView& view, const Shape& shape, std::string_view what) {
    check(view.shape() == shape && view.dtype() == DType::i32 && view.is_dense(),
          "{} of a batch are {} of {}; they have to be dense i32 of {}", what, name(view.dtype()),
          view.shape(), shape);
  };
  dense(batch.tokens, {sizes.batch, sizes.seq}, "tokens");
  dense(batch.labels, {sizes.batch, sizes.seq}, "labels");
  dense(batch.positions, {sizes.batch, sizes.seq}, "positions");
  if (sizes.max_documents > 0) {
    dense(batch.document_starts, {sizes.batch, sizes.max_documents + 1}, "document starts");
  }
}

}  // namespace

void check_plannable(const StepSizes& sizes) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
  std::int64_t tokens = 0;
  check(!__builtin_mul_overflow(sizes.batch, sizes.context, &tokens) && tokens <= kMaxTokens,
        "a batch of {} sequences of {} tokens is too large to plan; at most {} tokens are accepted",
        format_count(sizes.batch), format_count(sizes.context), format_count(kMaxTokens));
}

Decoder::Decoder(ModelConfig config, const Strategy& strategy, const StepSizes& sizes, const Mask& mask,
                 std::optional<int> sampled_rank)
    : config_(std::move(config)),
      parameters_(config_),
      shards_(parameters_, strategy.sharding, static_cast<int>(strategy.ranks()), strategy.loss_ranks),
      strategy_(strategy),
      sizes_(sizes),
      mask_(mask),
      rope_(rope_frequencies(config_.rope, config_.head_dim)) {
  validate(config_);
  validate(strategy, config_.layers);
  check(sizes.batch >= 1 && sizes.context >= 1, "a batch of {} sequences of {} tokens is empty", sizes.batch,
        sizes.context);
  const DType compute = strategy.compute_dtype;
  check(compute == DType::f32 || compute == DType::bf16 || compute == DType::f16,
        "a decoder computes in f32, bf16 or f16, not {}", name(compute));
  mask_.max_documents = sizes.max_documents;
  divide_sequences(sampled_rank);
}

void Decoder::divide_sequences(std::optional<int> sampled_rank) {
  const auto ranks = static_cast<int>(strategy_.ring_ranks);
  check(sizes_.batch % strategy_.data_ranks == 0,
        "a batch of {} sequences cannot be divided over {} groups of ranks; a multiple of {} can",
        sizes_.batch, strategy_.data_ranks, strategy_.data_ranks);
  const auto problem_of = [&](std::int64_t layer) {
    return whole_attention(config_, strategy_.compute_dtype, group_sizes(), layer_mask(layer));
  };
  bool windows = true;
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    windows = windows && layer_mask(layer).window_left < Mask::kUnlimited;
  }
  // Zigzag makes the work of causal masks equal. Under windows it is equal anyway, and one piece for each
  // rank has the fewest borders.
  partition_ =
      make_partition(windows ? PartitionKind::contiguous : PartitionKind::zigzag, ranks, problem_of(0), {});
  if (ranks == 1) return;
  for (int rank = 0; rank < ranks; ++rank) {
    check(partition_.tokens(rank) > 0,
          "a sequence of {} tokens cannot be divided over {} ranks; {} are enough", sizes_.context, ranks,
          2 * ranks);
  }
  const auto group = static_cast<int>(strategy_.head_group);
  if (sampled_rank) *sampled_rank %= ranks;
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    auto& schedule = schedules_[static_cast<std::size_t>(layer_spec(config_, layer).attention)];
    if (!schedule)
      schedule.emplace(way_of(group, ranks), problem_of(layer), AttentionForward{}, partition_, group,
                       sampled_rank);
  }
}

StepSizes Decoder::group_sizes() const {
  StepSizes sizes = sizes_;
  sizes.batch /= strategy_.data_ranks;
  return sizes;
}

std::int64_t Decoder::first_sequence(const Ranks& ranks) const {
  return ranks.rank / strategy_.ring_ranks * group_sizes().batch;
}

const std::vector<Piece>& Decoder::pieces(const Ranks& ranks) const {
  check(ranks.count == strategy_.ranks(), "batches are divided over {} ranks, and there are {}",
        strategy_.ranks(), ranks.count);
  return partition_.pieces[static_cast<std::size_t>(ranks.rank % strategy_.ring_ranks)];
}

RankSizes Decoder::rank_sizes(const Ranks& ranks) const {
  RankSizes sizes{.batch = group_sizes().batch, .seq = 0, .max_documents = sizes_.max_documents};
  for (const Piece& piece : pieces(ranks)) sizes.seq += piece.size();
  return sizes;
}

std::vector<std::int64_t> Decoder::rank_tokens() const {
  std::vector<std::int64_t> tokens;
  const auto count = static_cast<int>(strategy_.ranks());
  for (int rank = 0; rank < count; ++rank) tokens.push_back(rank_sizes({rank, count}).tokens());
  return tokens;
}

const ParallelSchedule* Decoder::schedule(std::int64_t layer) const {
  const auto& schedule = schedules_[static_cast<std::size_t>(layer_spec(config_, layer).attention)];
  return schedule ? &*schedule : nullptr;
}

Mask Decoder::layer_mask(std::int64_t layer) const {
  Mask mask = mask_;
  if (layer_spec(config_, layer).attention == AttentionKind::sliding) {
    mask.window_left = std::min(mask.window_left, config_.sliding_window - 1);
  }
  return mask;
}

void Decoder::train(Context& context, const StepBatch& batch, const StepBuffers& buffers,
                    const TensorView& loss, const TensorView& loss_gradient) const {
  check_batch(*this, context.ranks(), batch);
  const DType expected = gradient_dtype(strategy_.state);
  const DType given = buffers.gradients.view().dtype();
  check(given == expected, "gradients of a state of {} hold {}, not {}", name(strategy_.state), name(given),
        name(expected));
  Step(context, *this, rope_, batch, buffers).train(loss, loss_gradient);
}

void Decoder::evaluate(Context& context, const StepBatch& batch, const Tensor& weights,
                       const TensorView& loss, const Inspect& inspect) const {
  check_batch(*this, context.ranks(), batch);
  const Tensor no_gradients;
  Step(context, *this, rope_, batch, {.weights = weights, .gradients = no_gradients}).evaluate(loss, inspect);
}

}  // namespace headroom
