// A training step of a decoder in eager PyTorch: load, forward, loss, backward, optimizer.
#include <algorithm>
#include <utility>

#include "eager/layer.h"
#include "eager/loss.h"
#include "headroom/core/checked.h"
#include "headroom/model/parameters.h"

namespace headroom {
namespace {

// Every tensor of every layer is played, some twenty times to find the largest context.
constexpr std::int64_t kMaxLayers = 256;

class EagerStep {
 public:
  EagerStep(EagerProgram& program, const ModelConfig& config, const StepSizes& sizes,
            const EagerOptions& options)
      : program_(program), shared_{program, config, sizes, options, gradients_}, table_(config) {}

  void load() {
    const auto stage = program_.context().stage(StageKind::load);
    std::vector<Tensor> wide;
    if (shared_.options.made_in_f32 && shared_.options.dtype != DType::f32) {
      for (const Parameter& parameter : table_.entries()) {
        wide.push_back(program_.make("parameter in f32", Category::parameters, DType::f32, parameter.shape));
      }
    }
    for (const Parameter& parameter : table_.entries()) {
      // .to(dtype) converts one parameter after the other.
      parameters_.push_back(like(parameter, parameter.name, Category::parameters));
      if (!wide.empty()) drop(wide[parameters_.size() - 1]);
    }
    token_ids_ = program_.integers("token ids", shared_.tokens());
    labels_ = program_.integers("labels", shared_.tokens());
  }

  void run() {
    gradients_.clear();  // zero_grad(): set to None
    Tensor hidden;
    EagerRmsNorm final_norm(shared_, shared_.tokens(), shared_.config.hidden);
    {
      const auto stage = program_.context().stage(StageKind::forward);
      hidden = forward(final_norm);
    }
    EagerLossProgram loss(
        program_,
        {.tokens = shared_.tokens(), .hidden = shared_.config.hidden, .vocab = shared_.config.vocab},
        shared_.options);
    {
      const auto stage = program_.context().stage(StageKind::loss);
      output_cast_ = cast_output();
      loss.forward();
    }
    // With the end of autocast its cache goes; without checkpoint() the graph still holds the copies.
    if (checkpoints()) {
      for (Tensor& copies : casts_) drop(copies);
    }
    const auto stage = program_.context().stage(StageKind::backward);
    Tensor gradient;
    {
      const auto loss_stage = program_.context().stage(StageKind::loss);
      gradient = final_norm.backward(loss.backward());
      drop(last_output_, output_cast_);
    }
    backward();
    embedding_backward(shared_.as_parameter(loss.take_weight_gradient()));
  }

  // torch.optim.AdamW with foreach: every operator over all parameters at once.
  void update() {
    const auto stage = program_.context().stage(StageKind::optimizer);
    const auto like_all = [&](std::vector<Tensor>& tensors, std::string_view name) {
      for (const Parameter& parameter : table_.entries()) {
        tensors.push_back(like(parameter, name, Category::optimizer));
      }
    };
    if (shared_.options.state == StatePrecision::eight_bit) {
      if (moments_.empty()) eight_bit_moments();
      return;  // one fused kernel
    }
    if (moments_.empty()) {
      like_all(moments_, "exp_avg");
      like_all(moments_, "exp_avg_sq");
    }
    std::vector<Tensor> roots;
    like_all(roots, "exp_avg_sq.sqrt()");
  }

 private:
  [[nodiscard]] std::int64_t layers() const { return shared_.config.layers; }
  [[nodiscard]] bool checkpoints() const { return shared_.options.checkpoint_layers; }
  [[nodiscard]] Tensor& input(std::int64_t layer) { return inputs_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] Tensor& cast(std::int64_t layer) { return casts_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] EagerLayer& graph(std::int64_t layer) { return graphs_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] Tensor like(const Parameter& parameter, std::string_view name, Category category) const {
    return program_.make(name, category, shared_.options.parameter_dtype(), parameter.shape);
  }

  // As bitsandbytes' 8-bit AdamW has them: codes, and an f32 for every 256. Parameters of up to 4,096
  // elements stay in f32.
  void eight_bit_moments() {
    for (const Parameter& parameter : table_.entries()) {
      const std::int64_t elements = parameter.shape.elements();
      for (const std::string_view name : {"exp_avg", "exp_avg_sq"}) {
        const bool small = elements <= 4096;
        moments_.push_back(
            program_.make(name, Category::optimizer, small ? DType::f32 : DType::u8, {elements}));
        if (small) continue;
        moments_.push_back(
            program_.make("absmax", Category::optimizer, DType::f32, {divide_up(elements, 256)}));
      }
    }
  }

  // The copies of a layer's matrices that autocast makes in the products' dtype; elsewhere nothing.
  [[nodiscard]] Tensor cast_weights(std::int64_t layer) const {
    if (!shared_.options.autocast()) return {};
    std::int64_t elements = 0;
    for (const Weight weight : {Weight::query, Weight::key, Weight::value, Weight::output, Weight::gate,
                                Weight::up, Weight::down}) {
      if (const Parameter* parameter = table_.find(layer, weight)) elements += parameter->shape.elements();
    }
    return program_.make("weights.to(dtype)", Category::parameters, shared_.options.dtype, {elements});
  }

  [[nodiscard]] Tensor cast_output() const {
    if (!shared_.options.autocast()) return {};
    return program_.make("lm_head.to(dtype)", Category::parameters, shared_.options.dtype,
                         {shared_.config.vocab, shared_.config.hidden});
  }

  // The angles are made once, in f32; layers save cos and sin in their own type.
  void rope() {
    const auto stage = program_.context().stage(StageKind::rope);
    const std::int64_t seq = shared_.sizes.context;
    const std::int64_t width = shared_.config.head_dim;
    const auto wide = [&](std::string_view name, std::int64_t columns) {
      return program_.make(name, Category::activations, DType::f32, {seq, columns});
    };
    const Tensor positions = program_.integers("positions", seq);
    const Tensor frequencies = wide("freqs", width / 2);
    const Tensor angles = wide("cat(freqs, freqs)", width);
    (void)wide("emb.cos()", width);
    const Tensor cosines = wide("cos * scaling", width);
    (void)wide("emb.sin()", width);
    const Tensor sines = wide("sin * scaling", width);
    cos_ = program_.make("cos", Category::activations, shared_.options.dtype, {seq, width});
    sin_ = program_.make("sin", Category::activations, shared_.options.dtype, {seq, width});
  }

  Tensor forward(EagerRmsNorm& final_norm) {
    inputs_ = std::vector<Tensor>(static_cast<std::size_t>(layers()));
    graphs_.clear();
    casts_.clear();
    graphs_.reserve(static_cast<std::size_t>(layers()));
    Tensor x;
    {
      const auto stage = program_.context().stage(StageKind::embedding);
      x = shared_.hidden("embedding");
    }
    rope();
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      const auto stage = program_.context().stage(StageKind::layer, layer);
      graphs_.emplace_back(shared_, layer_spec(shared_.config, layer));
      casts_.push_back(cast_weights(layer));
      input(layer) = std::move(x);
      x = graph(layer).forward(checkpoints() ? EagerLayer::Mode::without_graph
                                             : EagerLayer::Mode::with_graph);
      if (!checkpoints() && !graph(layer).saves_input()) drop(input(layer));
    }
    const auto stage = program_.context().stage(StageKind::norm);
    Tensor hidden = final_norm.forward(true);
    if (shared_.options.dtype == DType::f32) last_output_ = std::move(x);  // the norm saves it
    return hidden;
  }

  void backward() {
    for (std::int64_t layer = layers() - 1; layer >= 0; --layer) {
      const auto stage = program_.context().stage(StageKind::layer, layer);
      if (checkpoints()) {
        const auto again = program_.context().stage(StageKind::again);
        cast(layer) = cast_weights(layer);
        (void)graph(layer).forward(EagerLayer::Mode::again);
      }
      graph(layer).backward();
      drop(input(layer), cast(layer));
    }
    drop(cos_, sin_);
  }

  void embedding_backward(Tensor output_gradient) {
    const auto stage = program_.context().stage(StageKind::embedding);
    const std::int64_t tokens = shared_.tokens();
    const ModelConfig& config = shared_.config;
    Tensor gradient = program_.make("embedding gradient", Category::gradients,
                                    shared_.options.parameter_dtype(), {config.vocab, config.hidden});
    {
      // Tokens are sorted; runs of ten are summed in f32 before the runs of one word are.
      const std::int64_t segments = tokens / 10 + std::min(tokens, config.vocab);
      const Tensor partial = program_.make("partial sums of the embedding", Category::workspace, DType::f32,
                                           {segments, config.hidden});
    }
    // Tied, both gradients are one parameter's: the second is added to the first.
    if (!config.tied_embeddings) gradients_.push_back(std::move(gradient));
    gradients_.push_back(std::move(output_gradient));
  }

  EagerProgram& program_;
  std::vector<Tensor> gradients_;
  EagerStepShared shared_;
  ParameterTable table_;
  std::vector<Tensor> parameters_, moments_;
  Tensor token_ids_, labels_, cos_, sin_;
  std::vector<Tensor> inputs_;  // [layers]
  std::vector<EagerLayer> graphs_;
  std::vector<Tensor> casts_;  // [layers], in autocast's cache or held by the graph
  Tensor last_output_, output_cast_;
};

}  // namespace

Ledger rehearse_eager(const ModelConfig& config, const StepSizes& sizes, const EagerOptions& options,
                      const DeviceDescription& device) {
  validate(config);
  check(sizes.batch >= 1 && sizes.context >= 1, "a batch of {} sequences of {} tokens is empty", sizes.batch,
        sizes.context);
  check(config.layers <= kMaxLayers,
        "a model of {} layers is too deep to plan in eager PyTorch; at most {} are accepted",
        format_count(config.layers), kMaxLayers);
  check_plannable(sizes);
  Context context(device);
  context.phase(Phase::step, [&] {
    EagerProgram program(context);
    EagerStep step(program, config, sizes, options);
    step.load();
    step.run();
    if (!options.adamw) return;
    step.update();
    const auto stage = context.stage(StageKind::step, 1);
    step.run();
    step.update();
  });
  return std::move(context).take_ledger();
}

}  // namespace headroom
