#include "traces.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "headroom/core/random.h"
#include "headroom/memory/context.h"

namespace headroom {
namespace {

constexpr std::int64_t kBlocksPerLayer = 29;  // where nothing is recomputed, else more

// Draws one after the other from a seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_.below(next_++, static_cast<std::uint64_t>(bound)));
  }
  // Every power of two between the two is equally likely.
  std::int64_t log_uniform(std::int64_t low, std::int64_t high) {
    const double ratio = std::log2(static_cast<double>(high) / static_cast<double>(low));
    return static_cast<std::int64_t>(static_cast<double>(low) * std::exp2(ratio * random_.uniform(next_++)));
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

// What one layer holds between its kernels, in elements of bf16.
struct LayerSizes {
  std::int64_t hidden;     // tokens x hidden
  std::int64_t attention;  // tokens x heads x head_dim
  std::int64_t key_value;  // tokens x kv_heads x head_dim
  std::int64_t mlp;        // tokens x intermediate
  std::int64_t lse;        // tokens x heads, in f32
};

class StepProgram {
 public:
  StepProgram(std::int64_t layers, std::uint64_t seed)
      : dice_(seed), layers_(layers), context_({.name = "phantom"}) {
    tokens_ = dice_.log_uniform(256, 131'072);
    hidden_ = dice_.log_uniform(8, 160) * 32;
    const std::int64_t heads = std::max<std::int64_t>(hidden_ / 128, 1);
    const std::int64_t kv_heads = std::max<std::int64_t>(heads / 4, 1);
    sizes_ = {tokens_ * hidden_, tokens_ * heads * 128, tokens_ * kv_heads * 128,
              tokens_ * (hidden_ * 3 + dice_.below(hidden_)), tokens_ * heads * 2};
    workspace_ = dice_.log_uniform(1 << 12, 64 << 20);
    keep_ = static_cast<Keep>(dice_.below(3));
  }

  Ledger run() {
    context_.phase(Phase::load, [&] { load(); });
    context_.phase(Phase::micro_step, [&] { micro_step(); });
    context_.phase(Phase::update, [&] {
      for (std::int64_t i = 0; i < layers_; ++i)
        make("norm partials", Category::workspace, workspace_).free();
    });
    for_the_run_.clear();
    return std::move(context_).take_ledger();
  }

 private:
  enum class Keep { everything, attention, input };

  struct Saved {  // by a layer, for backward
    Tensor input, norm, query, key, value, output, lse, gate, up;
  };

  Tensor make(std::string_view name, Category category, std::int64_t elements,
              Lifetime lifetime = Lifetime::phase) {
    return context_.allocate({.name = name,
                              .category = category,
                              .dtype = DType::bf16,
                              .shape = {elements},
                              .lifetime = lifetime});
  }

  void load() {
    const std::int64_t vocab = dice_.log_uniform(256, 151'936);
    for (std::int64_t i = 0; i < layers_; ++i) {
      const std::int64_t weights = hidden_ * hidden_ * 12;
      for_the_run_.push_back(make("weights", Category::parameters, weights, Lifetime::run));
      for_the_run_.push_back(make("weight gradients", Category::gradients, weights * 2, Lifetime::run));
      for_the_run_.push_back(make("moments", Category::optimizer, weights * 4, Lifetime::run));
    }
    for_the_run_.push_back(make("embedding", Category::parameters, vocab * hidden_, Lifetime::run));
    logits_ = std::max<std::int64_t>(tokens_ / (1 + dice_.below(16)), 1) * vocab;
  }

  // The layer's work from its input; fills what backward needs and leaves the output.
  Tensor forward(const Tensor& input, Saved& saved) {
    saved.norm = make("norm", Category::activations, sizes_.hidden);
    saved.query = make("query", Category::attention, sizes_.attention);
    saved.key = make("key", Category::attention, sizes_.key_value);
    saved.value = make("value", Category::attention, sizes_.key_value);
    if (saved.output.view().elements() == 0) {
      saved.output = make("attention output", Category::attention, sizes_.attention);
      saved.lse = make("lse", Category::attention, sizes_.lse);
      make("attention workspace", Category::workspace, workspace_).free();
    }
    Tensor projected = make("projected", Category::activations, sizes_.hidden);
    Tensor residual = make("residual", Category::activations, sizes_.hidden);
    projected.free();
    saved.gate = make("gate", Category::activations, sizes_.mlp);
    Tensor workspace = make("product workspace", Category::workspace, workspace_);
    saved.up = make("up", Category::activations, sizes_.mlp);
    workspace.free();
    Tensor product = make("gate x up", Category::activations, sizes_.mlp);
    Tensor output = make("layer output", Category::activations, input.view().elements());
    product.free();
    residual.free();
    return output;
  }

  static void forget(Saved& saved, Keep keep) {
    if (keep == Keep::everything) return;
    for (Tensor* tensor : {&saved.norm, &saved.query, &saved.key, &saved.value, &saved.gate, &saved.up}) {
      *tensor = Tensor();
    }
    if (keep == Keep::attention) return;
    saved.output = Tensor();
    saved.lse = Tensor();
  }

  Tensor backward(Tensor gradient, Saved saved) {
    if (keep_ != Keep::everything) {
      const auto stage = context_.stage(StageKind::again);
      forward(saved.input, saved).free();
    }
    Tensor gate_gradient = make("gate gradient", Category::activations, sizes_.mlp);
    Tensor up_gradient = make("up gradient", Category::activations, sizes_.mlp);
    if (dice_.below(2) == 0) {
      saved.up.free();
      saved.gate.free();
    } else {
      saved.gate.free();
      saved.up.free();
    }
    Tensor inner = make("MLP input gradient", Category::activations, sizes_.hidden);
    Tensor partials = make("weight gradient partials", Category::workspace, workspace_);
    gate_gradient.free();
    up_gradient.free();
    Tensor middle = make("middle gradient", Category::activations, sizes_.hidden);
    partials.free();
    inner.free();
    gradient.free();
    Tensor output_gradient = make("attention output gradient", Category::attention, sizes_.attention);
    Tensor row_sums = make("row sums", Category::workspace, sizes_.lse);
    Tensor query_gradient = make("query gradient", Category::attention, sizes_.attention * 2);
    Tensor key_gradient = make("key gradient", Category::attention, sizes_.key_value);
    Tensor value_gradient = make("value gradient", Category::attention, sizes_.key_value);
    for (Tensor* tensor :
         {&saved.output, &saved.lse, &saved.query, &saved.key, &saved.value, &output_gradient, &row_sums}) {
      tensor->free();
    }
    Tensor next = make("layer gradient", Category::activations, sizes_.hidden);
    for (Tensor* tensor :
         {&query_gradient, &key_gradient, &value_gradient, &saved.norm, &middle, &saved.input}) {
      tensor->free();
    }
    return next;
  }

  void micro_step() {
    std::vector<Saved> saved(static_cast<std::size_t>(layers_));
    Tensor state = make("embedded", Category::activations, sizes_.hidden);
    for (std::int64_t i = 0; i < layers_; ++i) {
      const auto stage = context_.stage(StageKind::forward, i);
      Saved& own = saved[static_cast<std::size_t>(i)];
      own.input = std::move(state);
      state = forward(own.input, own);
      forget(own, keep_);
    }
    Tensor gradient = make("hidden gradient", Category::activations, sizes_.hidden);
    {
      const auto stage = context_.stage(StageKind::loss);
      const Tensor logits = make("logits", Category::logits, logits_);
      const Tensor statistics = make("statistics", Category::logits, tokens_ * 4);
    }
    state.free();
    for (std::int64_t i = layers_ - 1; i >= 0; --i) {
      const auto stage = context_.stage(StageKind::backward, i);
      gradient = backward(std::move(gradient), std::move(saved[static_cast<std::size_t>(i)]));
    }
  }

  Dice dice_;
  std::int64_t layers_;
  std::int64_t tokens_ = 0;
  std::int64_t hidden_ = 0;
  std::int64_t workspace_ = 0;
  std::int64_t logits_ = 0;
  Keep keep_ = Keep::everything;
  LayerSizes sizes_{};
  Context context_;
  std::vector<Tensor> for_the_run_;
};

}  // namespace

std::vector<BlockLifetime> random_trace(std::int64_t blocks, std::uint64_t seed) {
  Dice dice(seed);
  std::vector<std::int64_t> moments(static_cast<std::size_t>(blocks) * 2);
  std::iota(moments.begin(), moments.end(), 0);
  for (std::size_t i = moments.size(); i > 1; --i) {
    std::swap(moments[i - 1], moments[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(i)))]);
  }
  std::vector<BlockLifetime> trace(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto [begin, end] = std::minmax(moments[2 * i], moments[2 * i + 1]);
    trace[i] = {begin, end, 1 + dice.below(1'000'000)};
  }
  return trace;
}

Ledger training_step_ledger(std::int64_t layers, std::uint64_t seed) {
  return StepProgram(layers, seed).run();
}

std::int64_t layers_for_blocks(std::int64_t blocks) {
  return (blocks + kBlocksPerLayer - 1) / kBlocksPerLayer;
}

}  // namespace headroom
