#include "headroom/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "headroom/ops.h"
#include "train/optimizer_update.h"
#include "train/state_gather.h"

namespace headroom {

namespace {

bool divides_weights(const Decoder& decoder) {
  return decoder.strategy().sharding == Sharding::full;
}

}  // namespace

void validate(const OptimizerSettings& settings) {
  const auto in = [](double value, double low, double high, std::string_view what) {
    check(value >= low && value <= high, "{} {} is not in {} to {}", what, value, low, high);
  };
  check(std::isfinite(settings.learning_rate) && settings.learning_rate >= 0,
        "learning rate {} has to be at least 0", settings.learning_rate);
  in(settings.final_fraction, 0, 1, "final fraction of the learning rate");
  check(settings.steps >= 1, "{} steps are none", settings.steps);
  check(settings.warmup_steps >= 0 && settings.warmup_steps <= settings.steps,
        "{} steps of warm-up are not in 0 to {}, the steps of the run", settings.warmup_steps,
        settings.steps);
  for (const double beta : {settings.beta1, settings.beta2}) {
    check(beta >= 0 && beta < 1, "beta1 {} and beta2 {} have to be at least 0 and below 1", settings.beta1,
          settings.beta2);
  }
  check(settings.epsilon > 0, "epsilon {} has to be above 0", settings.epsilon);
  check(settings.weight_decay >= 0, "weight decay {} has to be at least 0", settings.weight_decay);
  check(settings.max_norm > 0, "the gradients' norm is clipped to {}, which has to be above 0",
        settings.max_norm);
}

double learning_rate(const OptimizerSettings& settings, std::int64_t step) {
  const std::int64_t highest = std::max<std::int64_t>(settings.warmup_steps, 1);
  if (step <= highest) {
    return settings.learning_rate * static_cast<double>(step) / static_cast<double>(highest);
  }
  const auto span = static_cast<double>(std::max<std::int64_t>(settings.steps - highest, 1));
  const double through = std::min(static_cast<double>(step - highest) / span, 1.0);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * through));
  return settings.learning_rate * (settings.final_fraction + (1 - settings.final_fraction) * cosine);
}

Trainer::Trainer(Decoder decoder, const OptimizerSettings& optimizer)
    : decoder_(std::move(decoder)), optimizer_(optimizer) {
  validate(optimizer);
  check(!decoder_.strategy().offload_optimizer || optimizer.kind != OptimizerKind::none,
        "the strategy keeps the optimizer's state on the host, and there is no optimizer");
}

Tensor Trainer::take(Context& context, std::string_view name, Category category, DType dtype,
                     const Shape& shape, Space space) const {
  return context.allocate({.name = name,
                           .category = category,
                           .dtype = dtype,
                           .shape = shape,
                           .space = space,
                           .lifetime = Lifetime::run});
}

void Trainer::load(Context& context, const HostWork& body) {
  context.phase(Phase::load, [&] {
    const Shape flat{decoder_.parameters().elements()};
    const DType compute = decoder_.strategy().compute_dtype;
    const StatePrecision precision = decoder_.strategy().state;
    const StepSizes& sizes = decoder_.sizes();
    slices_ = decoder_.shards().slices(context.ranks().rank);
    const Shape own{decoder_.shards().elements(context.ranks().rank)};
    const Shape& of_weights = divides_weights(decoder_) ? own : flat;
    weights_ = take(context, "weights", Category::parameters, compute, of_weights);
    gradients_ = take(context, "gradients", Category::gradients, gradient_dtype(precision), of_weights);
    std::vector<const Tensor*> flats = {&weights_, &gradients_};
    if (optimizer_.kind == OptimizerKind::adamw) {
      const Space space = decoder_.strategy().offload_optimizer ? Space::host : Space::device;
      if (has_master(precision, compute)) {
        master_ = take(context, "master weights", Category::parameters, DType::f32, own, space);
        flats.push_back(&master_);
      }
      const auto moments = [&](std::string_view name, DType dtype, const Shape& shape) {
        return take(context, name, Category::optimizer, dtype, shape, space);
      };
      first_moment_ = moments("first moments", moment_dtype(precision), own);
      second_moment_ = moments("second moments", moment_dtype(precision), own);
      flats.insert(flats.end(), {&first_moment_, &second_moment_});
      if (precision == StatePrecision::eight_bit) {
        const Shape blocks{own.elements() / kMomentBlock};
        first_exponents_ = moments("first moments", DType::u8, blocks);
        second_exponents_ = moments("second moments", DType::u8, blocks);
        flats.insert(flats.end(), {&first_exponents_, &second_exponents_});
      }
    }
    const auto on_host = [&](std::string_view name, const Shape& shape) {
      return take(context, name, Category::staging, DType::i32, shape, Space::host);
    };
    host_batch_.tokens = on_host("tokens on the host", {sizes.batch, sizes.context});
    host_batch_.labels = on_host("labels on the host", {sizes.batch, sizes.context});
    host_batch_.positions = on_host("positions on the host", {sizes.batch, sizes.context});
    if (sizes.max_documents > 0) {
      host_batch_.document_starts =
          on_host("document starts on the host", {sizes.batch, sizes.max_documents + 1});
    }
    host_value_ = take(context, "value on the host", Category::staging, DType::f32, {1}, Space::host);
    // Host memory is pinned, so kernels reach it; only a step's copies have to be fast.
    for (const Tensor* zeros : flats) zero(context, *zeros);
    gradients_are_zero_ = true;
    Staging staging(context, largest_transfer_bytes());
    body(staging);
  });
}

std::int64_t Trainer::largest_transfer_bytes() const {
  return dense_bytes(gradient_dtype(decoder_.strategy().state), {decoder_.parameters().elements()});
}

void Trainer::initialize(Context& context, std::uint64_t seed) const {
  // A uniform of deviation 1 / sqrt(hidden): 0.02 at 2,560, and small models start as lively as large ones.
  const float reach = std::sqrt(3.0F / static_cast<float>(decoder_.config().hidden));
  const ParameterTable& table = decoder_.parameters();
  std::uint64_t stream = 0;
  for (const Parameter& parameter : table.entries()) {
    const Random random(seed, parameter.decays ? ++stream : 0);
    const auto begin_with = [&](const TensorView& values, std::int64_t first) {
      if (parameter.decays) {
        random_fill(context, values, random, -reach, reach, first);
      } else {
        fill(context, values, 1);
      }
    };
    const auto begin_part = [&](const Tensor& tensor, std::span<const ShardSlice> slices) {
      for_each_overlap(slices, parameter.offset, parameter.offset + parameter.shape.elements(),
                       [&](std::int64_t flat, std::int64_t own, std::int64_t elements) {
                         begin_with(tensor.view().slice(0, own, elements), flat - parameter.offset);
                       });
    };
    const std::array whole = {ShardSlice{.elements = table.elements()}};
    begin_part(weights_, divides_weights(decoder_) ? slices_ : std::span<const ShardSlice>(whole));
    if (master_.view().elements() > 0) begin_part(master_, slices_);
  }
}

TrainBuffers Trainer::buffers() const {
  return {.weights = weights_,
          .master = master_,
          .first_moment = first_moment_,
          .second_moment = second_moment_,
          .first_exponents = first_exponents_,
          .second_exponents = second_exponents_,
          .weight_slices = divides_weights(decoder_) ? slices_ : std::span<const ShardSlice>(),
          .state_slices = divides_state() ? slices_ : std::span<const ShardSlice>()};
}

StepBatch Trainer::DeviceBatch::views() const {
  return {.tokens = tokens, .labels = labels, .positions = positions, .document_starts = document_starts};
}

// Kernels use them as indices, and on a GPU have no way to say what is wrong.
void Trainer::check_words(const Samples& batch, std::int64_t vocab) {
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    check(batch.tokens[i] >= 0 && batch.tokens[i] < vocab,
          "token {} of a batch has id {}; the vocabulary has {} entries, from 0", i, batch.tokens[i], vocab);
    check(batch.labels[i] == kIgnore || (batch.labels[i] >= 0 && batch.labels[i] < vocab),
          "label {} of token {} is neither in 0 to {} nor {}, which is ignored", batch.labels[i], i,
          vocab - 1, kIgnore);
  }
}

// Before the phase, so that a batch without labels needs none. Every phase that copies from the buffers ends
// in a read-back, after which they are free to be written.
Trainer::BatchLabels Trainer::fill_host_batch(Context& context, const FillBatch& fill) const {
  const auto room = [&](const Tensor& tensor) {
    return tensor.view().elements() == 0 ? std::span<std::int32_t>()
                                         : context.host_elements<std::int32_t>(tensor);
  };
  const Samples batch{.tokens = room(host_batch_.tokens),
                      .labels = room(host_batch_.labels),
                      .positions = room(host_batch_.positions),
                      .document_starts = room(host_batch_.document_starts)};
  const StepSizes& sizes = decoder_.sizes();
  BatchLabels labels{.all = sizes.batch * sizes.context,
                     .own = decoder_.rank_sizes(context.ranks()).tokens()};
  context.run([&](const Stream&) {
    fill(batch);
    check_words(batch, decoder_.config().vocab);
    labels.all -= std::ranges::count(batch.labels, kIgnore);
    for_each_own_part(context, [&](std::int64_t, std::int64_t begin, std::int64_t tokens) {
      const auto part =
          batch.labels.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(tokens));
      labels.own -= std::ranges::count(part, kIgnore);
    });
  });
  return labels;
}

template <class Body>
void Trainer::for_each_own_part(const Context& context, const Body& body) const {
  const std::vector<Piece>& pieces = decoder_.pieces(context.ranks());
  const StepSizes sizes = decoder_.group_sizes();
  const std::int64_t first = decoder_.first_sequence(context.ranks());
  // Whole sequences lie side by side.
  if (pieces.front().size() == sizes.context) {
    return body(0, first * sizes.context, sizes.batch * sizes.context);
  }
  std::int64_t own = 0;
  for (std::int64_t sequence = first; sequence < first + sizes.batch; ++sequence) {
    for (const Piece& piece : pieces) {
      body(own, sequence * sizes.context + piece.begin, piece.size());
      own += piece.size();
    }
  }
}

Trainer::DeviceBatch Trainer::send(Context& context) const {
  const RankSizes sizes = decoder_.rank_sizes(context.ranks());
  const auto on_device = [&](std::string_view name, const Shape& shape) {
    return context.allocate(
        {.name = name, .category = Category::activations, .dtype = DType::i32, .shape = shape});
  };
  const auto own_part = [&](std::string_view name, const Tensor& host) {
    Tensor device = on_device(name, {sizes.batch, sizes.seq});
    for_each_own_part(context, [&](std::int64_t own, std::int64_t begin, std::int64_t tokens) {
      context.copy(StreamId::main, {device, own, tokens}, {host, begin, tokens});
    });
    return device;
  };
  DeviceBatch batch;
  batch.tokens = own_part("tokens", host_batch_.tokens);
  batch.labels = own_part("labels", host_batch_.labels);
  batch.positions = own_part("positions", host_batch_.positions);
  if (sizes.max_documents > 0) {
    const Shape shape{sizes.batch, sizes.max_documents + 1};
    batch.document_starts = on_device("document starts", shape);
    const std::int64_t begin = decoder_.first_sequence(context.ranks()) * (sizes.max_documents + 1);
    context.copy(StreamId::main, {batch.document_starts, 0, shape.elements()},
                 {host_batch_.document_starts, begin, shape.elements()});
  }
  return batch;
}

double Trainer::read_back(Context& context, const Tensor& value) const {
  context.copy(StreamId::main, host_value_, value);
  context.wait_on_host(context.record(StreamId::main));
  const std::span<const float> arrived = context.host_elements<float>(host_value_);
  double result = 0;
  context.run([&](const Stream&) { result = static_cast<double>(arrived[0]); });
  return result;
}

LossSum Trainer::sum_over_ranks(Context& context, const LossSum& mine) {
  return {.sum = context.all_reduce(mine.sum),
          .labels = std::llround(context.all_reduce(static_cast<double>(mine.labels)))};
}

double Trainer::gradient_scale(std::int64_t labels) const {
  const StepSizes& sizes = decoder_.sizes();
  return static_cast<double>(sizes.batch * sizes.context) / static_cast<double>(labels);
}

LossSum Trainer::micro_step(Context& context, const FillBatch& fill_batch) {
  const BatchLabels labels = fill_host_batch(context, fill_batch);
  if (labels.all == 0) return sum_over_ranks(context, {});
  double mean = 0;
  context.phase(Phase::micro_step, [&] {
    const DeviceBatch batch = send(context);
    const Tensor loss = context.allocate({.name = "loss", .category = Category::activations, .shape = {1}});
    const Tensor loss_gradient =
        context.allocate({.name = "loss gradient", .category = Category::activations, .shape = {1}});
    // Every label weighs the same in the gradients, whatever the number of labels beside it; how many there
    // are in all is known at the update. A rank may have none: its mean loss and its gradients are zero.
    fill(context, loss_gradient, static_cast<float>(1 / gradient_scale(labels.own)));
    decoder_.train(context, batch.views(),
                   {.weights = weights_,
                    .gradients = gradients_,
                    .gradients_are_zero = std::exchange(gradients_are_zero_, false)},
                   loss, loss_gradient);
    mean = read_back(context, loss);
  });
  return sum_over_ranks(context, {.sum = mean * static_cast<double>(labels.own), .labels = labels.own});
}

double Trainer::update(Context& context, std::int64_t step, std::int64_t labels) {
  check(optimizer_.kind != OptimizerKind::none, "a trainer without an optimizer has no update");
  check(labels > 0, "an update of {} labels is impossible; a step without a label has no gradient", labels);
  double norm_value = 0;
  context.phase(Phase::update, [&] {
    const auto value = [&](std::string_view name, DType dtype) {
      return context.allocate({.name = name, .category = Category::optimizer, .dtype = dtype, .shape = {1}});
    };
    const Tensor sum = value("sum of squares", DType::f64);
    const Tensor norm = value("gradient norm", DType::f32);
    const Tensor factor = value("clip factor", DType::f32);
    const Tensor finite = value("finite", DType::i32);
    const std::span<const std::int64_t> counts = decoder_.shards().counts(0);
    switch (decoder_.strategy().sharding) {
      case Sharding::none: context.all_reduce(gradients_); break;
      case Sharding::optimizer: context.reduce_scatter(gradients_, counts); break;
      case Sharding::full: break;  // every micro-step has added them up
    }
    const auto own = [&](const Tensor& flat) -> TensorView {
      if (divides_weights(decoder_)) return flat;
      return flat.view().slice(0, slices_.front().flat_begin, slices_.front().elements);
    };
    sum_of_squares(context, own(gradients_), sum, Store::overwrite);
    if (divides_state()) context.all_reduce(sum);
    clip_factor(context, {.sum_of_squares = sum, .norm = norm, .factor = factor, .finite = finite},
                {.max_norm = optimizer_.max_norm, .scale = gradient_scale(labels)});
    const OptimizerUpdate update{.table = decoder_.parameters(),
                                 .slices = slices_,
                                 .settings = {.learning_rate = learning_rate(optimizer_, step),
                                              .beta1 = optimizer_.beta1,
                                              .beta2 = optimizer_.beta2,
                                              .epsilon = optimizer_.epsilon,
                                              .weight_decay = optimizer_.weight_decay,
                                              .step = step},
                                 .weights = own(weights_),
                                 .gradients = own(gradients_),
                                 .factor = factor};
    const TrainBuffers state = buffers();
    if (decoder_.strategy().offload_optimizer) {
      update_from_host(context, update, state);
    } else {
      update_on_device(context, update, state);
    }
    // Slices arrive while the gradients are cleared.
    std::optional<Ticket> gathered;
    if (divides_state() && !divides_weights(decoder_))
      gathered = context.all_gather(weights_, counts, {"gathering of the weights"});
    zero(context, gradients_);
    gradients_are_zero_ = true;
    if (gathered) context.wait(StreamId::main, *gathered);
    norm_value = read_back(context, norm);
  });
  return norm_value;
}

void Trainer::save(Context& context, const HostWork& body) {
  context.phase(Phase::save, [&] {
    Staging staging(context, largest_transfer_bytes());
    context.run([&](const Stream&) { body(staging); });
  });
}

void Trainer::save_divided(Context& context, const WriteDivided& body) {
  context.phase(Phase::gather, [&] {
    Staging staging(context, largest_transfer_bytes());
    std::vector<const Tensor*> flats;
    if (divides_weights(decoder_)) flats.push_back(&weights_);
    for (const Tensor* flat :
         {&master_, &first_moment_, &second_moment_, &first_exponents_, &second_exponents_}) {
      if (flat->view().elements() > 0) flats.push_back(flat);
    }
    StateGather gather(context, decoder_.shards(), std::move(flats));
    if (!context.phantom() && context.ranks().rank == 0) body(staging, gather);
    gather.finish();
  });
}

LossSum Trainer::evaluate(Context& context, const FillBatch& fill_batch, const Inspect& inspect) {
  const BatchLabels labels = fill_host_batch(context, fill_batch);
  if (labels.all == 0) return sum_over_ranks(context, {});
  double mean = 0;
  context.phase(Phase::evaluate, [&] {
    const DeviceBatch batch = send(context);
    const Tensor loss = context.allocate({.name = "loss", .category = Category::activations, .shape = {1}});
    Staging staging(context, largest_transfer_bytes());  // for inspect, and rehearsed without it
    Decoder::Inspect look;
    if (inspect) look = [&](std::string_view name, const Tensor& result) { inspect(name, result, staging); };
    decoder_.evaluate(context, batch.views(), weights_, loss, look);
    mean = read_back(context, loss);
  });
  return sum_over_ranks(context, {.sum = mean * static_cast<double>(labels.own), .labels = labels.own});
}

}  // namespace headroom
