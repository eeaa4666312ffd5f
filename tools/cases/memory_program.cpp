#include "memory_program.h"

#include <cmath>
#include <optional>

#include "headroom/core/files.h"
#include "headroom/cpu.h"
#include "headroom/ops.h"

namespace headroom {
namespace {

constexpr float kLearningRate = 0.1F;
constexpr float kMomentum = 0.9F;

// c <- a b, or c <- c + a b; any strides.
void multiply(const Stream& stream, const TensorView& a, const TensorView& b, const TensorView& c, bool add) {
  const std::int64_t inner = a.extent(1);
  const std::int64_t columns = c.extent(1);
  parallel_for(stream, c.extent(0), [&](std::int64_t i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float sum = add ? c.data<float>()[c.offset(i, j)] : 0.0F;
      const float* x = a.data<float>() + a.offset(i, 0);
      const float* y = b.data<float>() + b.offset(0, j);
      for (std::int64_t k = 0; k < inner; ++k) sum += x[k * a.stride(1)] * y[k * b.stride(0)];
      c.data<float>()[c.offset(i, j)] = sum;
    }
  });
}

}  // namespace

MemoryProgram::MemoryProgram(Context& context, const MemoryProgramSizes& sizes)
    : context_(context), sizes_(sizes) {
  context_.phase(Phase::load, [&] {
    layers_[0] = make_layer(sizes_.hidden, sizes_.input, 1);
    layers_[1] = make_layer(sizes_.output, sizes_.hidden, 2);
    teacher_ = context_.allocate({.name = "teacher",
                                  .category = Category::parameters,
                                  .shape = {sizes_.output, sizes_.input},
                                  .lifetime = Lifetime::run});
    random_fill(context_, teacher_, Random(3), -0.2F, 0.2F);
    arriving_ = context_.allocate({.name = "arriving batch",
                                   .category = Category::activations,
                                   .shape = {sizes_.batch, sizes_.input},
                                   .lifetime = Lifetime::run});
    staging_ = context_.allocate({.name = "next batch",
                                  .category = Category::staging,
                                  .shape = {sizes_.batch, sizes_.input},
                                  .space = Space::host,
                                  .lifetime = Lifetime::run});
    loss_ = context_.allocate({.name = "loss",
                               .category = Category::staging,
                               .shape = {1},
                               .space = Space::host,
                               .lifetime = Lifetime::run});
    const Ticket arrived = fetch_batch();
    context_.wait(StreamId::main, arrived);
    context_.wait_on_host(arrived);
  });
}

MemoryProgram::Layer MemoryProgram::make_layer(std::int64_t outputs, std::int64_t inputs,
                                               std::uint64_t seed) {
  const auto allocate = [&](std::string_view name, Category category) {
    return context_.allocate(
        {.name = name, .category = category, .shape = {outputs, inputs}, .lifetime = Lifetime::run});
  };
  Layer layer{allocate("weight", Category::parameters), allocate("weight gradient", Category::gradients),
              allocate("momentum", Category::optimizer)};
  const float scale = std::sqrt(3.0F / static_cast<float>(inputs));
  random_fill(context_, layer.weight, Random(seed), -scale, scale);
  random_fill(context_, layer.gradient, Random(0), 0, 0);
  random_fill(context_, layer.momentum, Random(0), 0, 0);
  return layer;
}

Ticket MemoryProgram::fetch_batch() {
  ++batches_;
  random_fill(context_, staging_, Random(4, batches_), -1, 1);
  context_.wait(StreamId::copy, context_.record(StreamId::main));
  context_.copy(StreamId::copy, arriving_, staging_);
  return context_.record(StreamId::copy);
}

double MemoryProgram::step() {
  double loss = 0;
  for (std::int64_t i = 0; i < sizes_.accumulation; ++i) {
    context_.phase(Phase::micro_step, [&] { micro_step(); });
    for (const float part : context_.host_elements<float>(loss_)) loss += part;
  }
  context_.phase(Phase::update, [&] { update(); });
  return loss / static_cast<double>(sizes_.accumulation);
}

void MemoryProgram::micro_step() {
  const TensorView& w1 = layers_[0].weight;
  const TensorView& w2 = layers_[1].weight;
  const auto activation = [&](std::string_view name, std::int64_t columns) {
    return context_.allocate(
        {.name = name, .category = Category::activations, .shape = {sizes_.batch, columns}});
  };

  const Tensor batch = activation("batch", sizes_.input);
  context_.copy(StreamId::main, batch, arriving_);
  const TensorView& x = batch;
  const Ticket next_arrived = fetch_batch();

  Tensor hidden;
  Tensor output;
  {
    const auto stage = context_.stage(StageKind::forward);
    {
      const auto layer = context_.stage(StageKind::layer, 0);
      hidden = activation("hidden", sizes_.hidden);
      context_.run([&](const Stream& stream) {
        multiply(stream, x, w1.transpose(0, 1), hidden, false);
        for (float& h : std::span(hidden.data<float>(), static_cast<std::size_t>(hidden.view().elements()))) {
          h = std::max(h, 0.0F);
        }
      });
    }
    const auto layer = context_.stage(StageKind::layer, 1);
    output = activation("output", sizes_.output);
    context_.run([&](const Stream& stream) { multiply(stream, hidden, w2.transpose(0, 1), output, false); });
  }
  {
    const auto stage = context_.stage(StageKind::loss);
    const Tensor target = activation("target", sizes_.output);
    context_.run([&](const Stream& stream) {
      // loss <- mean (output - target)^2, output <- its gradient
      multiply(stream, x, teacher_.view().transpose(0, 1), target, false);
      const auto count = static_cast<std::size_t>(output.view().elements());
      const std::span values(output.data<float>(), count);
      double sum = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const float difference = values[i] - target.data<float>()[i];
        sum += double{difference} * difference;
        values[i] =
            2 * difference / static_cast<float>(static_cast<std::int64_t>(count) * sizes_.accumulation);
      }
      loss_.data<float>()[0] = static_cast<float>(sum / static_cast<double>(count));
    });
  }
  {
    const auto stage = context_.stage(StageKind::backward);
    Tensor hidden_gradient = activation("hidden gradient", sizes_.hidden);
    context_.run([&](const Stream& stream) {
      multiply(stream, output.view().transpose(0, 1), hidden, layers_[1].gradient, true);
      multiply(stream, output, w2, hidden_gradient, false);
    });
    output.free();
    context_.run([&](const Stream& stream) {
      for (std::int64_t i = 0; i < hidden.view().elements(); ++i) {
        if (hidden.data<float>()[i] == 0) hidden_gradient.data<float>()[i] = 0;
      }
      multiply(stream, hidden_gradient.view().transpose(0, 1), x, layers_[0].gradient, true);
    });
  }
  hidden.free();
  context_.wait(StreamId::main, next_arrived);
  context_.wait_on_host(context_.record(StreamId::main));  // for the loss; the staging is free again as well
}

void MemoryProgram::update() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto stage = context_.stage(StageKind::layer, static_cast<std::int64_t>(i));
    const Layer& layer = layers_[i];
    context_.run([&](const Stream&) {
      // momentum <- m * momentum + gradient; weight <- weight - rate * momentum; gradient <- 0
      for (std::int64_t k = 0; k < layer.weight.view().elements(); ++k) {
        float& momentum = layer.momentum.data<float>()[k];
        momentum = kMomentum * momentum + layer.gradient.data<float>()[k];
        layer.weight.data<float>()[k] -= kLearningRate * momentum;
        layer.gradient.data<float>()[k] = 0;
      }
    });
  }
}

void MemoryProgram::read_parameters(const std::function<void(std::span<const float>)>& read) {
  context_.phase(Phase::save, [&] {
    std::array<Tensor, 2> copies;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      copies[i] = context_.allocate({.name = "saved weight",
                                     .category = Category::staging,
                                     .shape = layers_[i].weight.view().shape(),
                                     .space = Space::host});
    }
    context_.wait(StreamId::copy, context_.record(StreamId::main));
    for (std::size_t i = 0; i < layers_.size(); ++i)
      context_.copy(StreamId::copy, copies[i], layers_[i].weight);
    const Ticket copied = context_.record(StreamId::copy);
    context_.wait(StreamId::main, copied);
    context_.wait_on_host(copied);
    for (const Tensor& copy : copies) {
      const std::span<float> values = context_.host_elements<float>(copy);
      context_.run([&](const Stream&) { read(values); });
    }
  });
}

void MemoryProgram::save(const std::filesystem::path& path) {
  std::optional<FileWriter> file;
  if (!context_.phantom()) file.emplace(path);
  read_parameters([&](std::span<const float> values) { file->write(std::as_bytes(values)); });
  if (file) file->commit();
}

std::vector<float> MemoryProgram::parameters() {
  std::vector<float> all;
  read_parameters(
      [&](std::span<const float> values) { all.insert(all.end(), values.begin(), values.end()); });
  return all;
}

}  // namespace headroom
