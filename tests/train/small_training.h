// What the tests of checkpoints save and load.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "headroom/core/random.h"
#include "headroom/model/safetensors.h"
#include "headroom/train/checkpoint.h"
#include "model/host_tensors.h"

namespace headroom {

// A small model in training: every element of every buffer is known from the step.
class Training {
 public:
  explicit Training(DType dtype = DType::bf16) : dtype_(dtype) {
    config.vocab = 9;
    config.hidden = 12;
    config.layers = 1;
    config.head_dim = 8;
    config.mlp = 10;
    table = ParameterTable(config);
    const auto size = static_cast<std::size_t>(table.elements());
    for (auto* buffer : {&weights, &master, &first, &second}) buffer->assign(size, 0);
  }

  void advance_to(std::int64_t step) {
    state = {.step = step,
             .tokens = 100 * step,
             .samples = 3 * step,
             .settings = {{"learning_rate", "0.1"}, {"context", "64"}}};
    std::uint32_t salt = 0;
    for (auto* buffer : {&weights, &master, &first, &second}) {
      ++salt;
      for (std::size_t i = 0; i < buffer->size(); ++i) {
        // Any bits at all, as long as they say where they belong and are finite in every dtype.
        (*buffer)[i] =
            (static_cast<std::uint32_t>(i * 2654435761u) ^ (salt << 28) ^ static_cast<std::uint32_t>(step)) &
            ~0x4000'4000u;
      }
    }
    for (std::size_t i = 0; i < table.entries().size(); ++i) {  // padding
      const Parameter& parameter = table.entries()[i];
      const bool last = i + 1 == table.entries().size();
      const std::int64_t end = last ? table.elements() : table.entries()[i + 1].offset;
      for (std::int64_t e = parameter.offset + parameter.shape.elements(); e < end; ++e) {
        const auto at = static_cast<std::size_t>(e);
        for (auto* buffer : {&master, &first, &second}) (*buffer)[at] = 0;
        if (dtype_ == DType::f32) weights[at] = 0;
        if (dtype_ != DType::f32) reinterpret_cast<std::uint16_t*>(weights.data())[at] = 0;
      }
    }
    if (dtype_ != DType::f32) {  // the upper half of the buffer is not part of it
      std::memset(reinterpret_cast<char*>(weights.data()) + table.elements() * 2, 0,
                  static_cast<std::size_t>(table.elements() * 2));
    } else {
      std::ranges::fill(master, 0);
    }
  }

  // body(context, tensors, staging), rehearsed and run: the tensors hold what the buffers do, and the buffers
  // then what it made of the tensors.
  using Body = std::function<void(Context&, const TrainBuffers&, Staging&)>;
  void with_tensors(const Body& body) {
    run_rehearsed([&](Context& context) {
      context.phase(Phase::load, [&] {
        const Shape flat{table.elements()};
        const auto take = [&](DType dtype) {
          return context.allocate({.name = "flat", .dtype = dtype, .shape = flat});
        };
        const Tensor none;
        std::array<Tensor, 4> tensors = {take(dtype_), take(DType::f32), take(DType::f32), take(DType::f32)};
        const std::array buffers = {&weights, &master, &first, &second};
        const auto bytes = [&](std::size_t i) {
          return std::as_writable_bytes(std::span(*buffers[i]))
              .first(static_cast<std::size_t>(tensors[i].view().bytes()));
        };
        Staging staging(context);
        for (std::size_t i = 0; i < tensors.size(); ++i) staging.upload(tensors[i], bytes(i));
        body(context, {tensors[0], dtype_ == DType::f32 ? none : tensors[1], tensors[2], tensors[3]},
             staging);
        for (std::size_t i = 0; i < tensors.size(); ++i) staging.download(bytes(i), tensors[i]);
      });
    });
  }

  std::filesystem::path save(const std::filesystem::path& root, const ModelFiles& files = {}) {
    std::filesystem::path path;
    with_tensors([&](Context& context, const TrainBuffers& buffers, Staging& staging) {
      if (!context.phantom()) path = write_checkpoint(root, config, state, buffers, staging, files);
    });
    return path;
  }
  void load(const std::filesystem::path& checkpoint) {
    with_tensors([&](Context& context, const TrainBuffers& buffers, Staging& staging) {
      if (!context.phantom()) state = read_checkpoint(checkpoint, config, buffers, staging);
    });
  }
  bool operator==(const Training& other) const {
    return state == other.state && weights == other.weights && master == other.master &&
           first == other.first && second == other.second;
  }

  ModelConfig config = built_in_model("demo");
  ParameterTable table{config};
  TrainState state;
  std::vector<std::uint32_t> weights, master, first, second;

 private:
  DType dtype_;
};

inline Training at_step(std::int64_t step, DType dtype = DType::bf16) {
  Training training(dtype);
  training.advance_to(step);
  return training;
}

}  // namespace headroom
