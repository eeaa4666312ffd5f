#include "headroom/ops/mlp.h"

#include <algorithm>
#include <vector>

#include "headroom/core/checked.h"
#include "ops/arguments.h"
#include "ops/f32_sum.h"
#include "ops/matmul.h"
#include "ops/swiglu.h"
#include "ops/work.h"

namespace headroom {
namespace {

// A tile of what is as wide as the MLP, as the products see it: so that a rehearsal refuses what a run would.
TensorView wide(const MlpForward& views) {
  return {nullptr, views.x.dtype(), {views.x.extent(0), views.weights.gate.extent(0)}};
}

// The weights, or their gradients, of gate and up: one matrix where they lie side by side, so that products
// with it are one instead of two.
std::vector<TensorView> matrices(const MlpWeights& weights) {
  if (weights.gate_up.elements() > 0) return {weights.gate_up};
  return {weights.gate, weights.up};
}

void check_forward(const MlpForward& views) {
  const Arguments arguments("mlp");
  arguments.shape(views.y, views.x.shape(), "y");
  check_product(views.x, views.weights.gate.transpose(0, 1), wide(views));
  check_product(wide(views), views.weights.down.transpose(0, 1), views.y);
  if (views.residual.elements() > 0) check_addend(views.residual, views.y);
}

void check_backward(const MlpBackward& views) {
  const Arguments arguments("mlp");
  const MlpForward& forward = views.forward;
  arguments.shape(views.y_gradient, forward.x.shape(), "y gradient");
  arguments.shape(views.x_gradient, forward.x.shape(), "x gradient");
  const auto gradient = [&](const TensorView& view, const TensorView& weight, std::string_view what) {
    if (view.dtype() != DType::f32) arguments.dtype(view, weight.dtype(), what);
    arguments.shape(view, weight.shape(), what);
  };
  gradient(views.gradients.gate, forward.weights.gate, "gate gradient");
  gradient(views.gradients.up, forward.weights.up, "up gradient");
  gradient(views.gradients.down, forward.weights.down, "down gradient");
  gradient(views.gradients.gate_up, forward.weights.gate_up, "gate and up gradient");
  check_product(views.y_gradient, forward.weights.down, wide(forward));
  check_product(wide(forward), forward.weights.gate, views.x_gradient);
}

// The buffers of one tile, taken before the loop over tiles.
class Tile {
 public:
  // `weight_gradient` is the dtype of the gradients that backward adds to.
  Tile(Context& context, const MlpForward& views, std::int64_t tile_tokens, Pass pass,
       DType weight_gradient = DType::f32)
      : views_(views), product_(product_row(context.description())) {
    const Arguments arguments("mlp");
    arguments.rank(views.x, 2, 2, "x");
    const std::int64_t hidden = views.x.extent(1);
    const std::int64_t mlp = views.weights.gate.extent(0);
    arguments.shape(views.weights.gate, {mlp, hidden}, "gate weight");
    arguments.shape(views.weights.up, {mlp, hidden}, "up weight");
    arguments.shape(views.weights.down, {hidden, mlp}, "down weight");
    if (views.weights.gate_up.elements() > 0) {
      arguments.shape(views.weights.gate_up, {2 * mlp, hidden}, "gate and up weight");
    }
    if (keeps()) arguments.shape(views.gate_up, {views.x.extent(0), 2 * mlp}, "kept gate and up");
    check(tile_tokens >= 0, "mlp: a tile of {} tokens is negative; 0 takes all at once", tile_tokens);
    const std::int64_t tokens = std::max<std::int64_t>(views.x.extent(0), 1);
    tokens_ = tile_tokens == 0 ? tokens : std::min(tile_tokens, tokens);
    const auto take = [&](std::string_view what, std::int64_t width) {
      return context.allocate({.name = what,
                               .category = Category::workspace,
                               .dtype = views.x.dtype(),
                               .shape = {tokens_, width}});
    };
    if (!keeps()) gate_up_ = take("mlp gate and up tile", 2 * mlp);
    if (pass == Pass::backward || keeps()) act_ = take("mlp activation tile", mlp);
    const DeviceDescription& device = context.description();
    const DType dtype = views.x.dtype();
    std::int64_t bytes = std::max({product_workspace_bytes(2 * mlp, hidden, device, dtype),
                                   product_workspace_bytes(mlp, hidden, device, dtype),
                                   product_workspace_bytes(hidden, mlp, device, dtype)});
    if (pass == Pass::backward) {
      bytes = std::max({bytes, product_workspace_bytes(hidden, 2 * mlp, device, dtype),
                        product_workspace_bytes(mlp, tokens_, device, weight_gradient),
                        product_workspace_bytes(hidden, tokens_, device, weight_gradient)});
    }
    workspace_ = context.allocate({.name = "mlp product workspace",
                                   .category = Category::workspace,
                                   .dtype = DType::u8,
                                   .shape = {bytes}});
  }

  // What is made of products has the product's row.
  [[nodiscard]] Work work(std::string_view kernel, double flops, double bytes) const {
    return {.kernel = kernel,
            .row = product_.name,
            .assumed = product_.assumed(),
            .flops = flops,
            .bytes = bytes,
            .workspace_bytes = workspace_.view().bytes()};
  }

  // body(first token, count) for every tile.
  template <class Body>
  void for_each(const Body& body) const {
    for (std::int64_t begin = 0; begin < views_.x.extent(0); begin += tokens_) {
      body(begin, std::min(tokens_, views_.x.extent(0) - begin));
    }
  }
  // How many: each reads the weights, and in backward reads and writes their gradients.
  [[nodiscard]] double count() const { return static_cast<double>(divide_up(views_.x.extent(0), tokens_)); }
  [[nodiscard]] bool keeps() const { return views_.gate_up.elements() > 0; }

  // a b into c, all of one tile or a weight.
  void product(const TensorView& a, const TensorView& b, const TensorView& c, bool add, const Stream& stream,
               const TensorView& addend = {}) const {
    product_.run({a, b, c, add, addend}, workspace_, stream);
  }
  // body(matrix, columns) for each matrix that gate and up are made with, and its columns of them.
  template <class Body>
  void for_each_matrix(const MlpWeights& weights, const TensorView& gate_up, const Body& body) const {
    std::int64_t begin = 0;
    for (const TensorView& matrix : matrices(weights)) {
      body(matrix, gate_up.slice(1, begin, matrix.extent(0)));
      begin += matrix.extent(0);
    }
  }
  void make(std::int64_t begin, std::int64_t count, const Stream& stream) const {
    for_each_matrix(
        views_.weights, gate_up(begin, count), [&](const TensorView& weight, const TensorView& columns) {
          product(views_.x.slice(0, begin, count), weight.transpose(0, 1), columns, false, stream);
        });
  }
  // gate and up of a tile side by side, where forward keeps them or in the tile's own buffer.
  [[nodiscard]] TensorView gate_up(std::int64_t begin, std::int64_t count) const {
    return keeps() ? views_.gate_up.slice(0, begin, count) : gate_up_.view().slice(0, 0, count);
  }
  [[nodiscard]] TensorView gate(std::int64_t begin, std::int64_t count) const {
    return gate_up(begin, count).slice(1, 0, views_.weights.gate.extent(0));
  }
  [[nodiscard]] TensorView up(std::int64_t begin, std::int64_t count) const {
    const std::int64_t mlp = views_.weights.gate.extent(0);
    return gate_up(begin, count).slice(1, mlp, mlp);
  }
  [[nodiscard]] TensorView act(std::int64_t count) const { return act_.view().slice(0, 0, count); }

 private:
  const MlpForward& views_;
  std::int64_t tokens_ = 0;
  Tensor gate_up_;  // [tokens_, 2 mlp]
  Tensor act_;      // [tokens_, mlp]
  Tensor workspace_;
  const ProductRow& product_;
};

double product_flops_of(const MlpForward& views) {
  return product_flops(views.x.extent(0), views.weights.gate.extent(0), views.weights.gate.extent(1));
}
double bytes_of(const MlpWeights& weights) {
  return moved_bytes({weights.gate, weights.up, weights.down});
}
double token_bytes_of(const MlpForward& views) {
  return moved_bytes({views.x, views.y, views.gate_up});
}

}  // namespace

void mlp_forward(Context& context, const MlpForward& views, std::int64_t tile_tokens) {
  const Tile tile(context, views, tile_tokens, Pass::forward);
  check_forward(views);
  const auto& swiglu = pick(swiglu_forward_rows(), SwigluForward{}, context.description(), {}, "swiglu");
  Work work = tile.work("mlp", 3 * product_flops_of(views),
                        token_bytes_of(views) + tile.count() * bytes_of(views.weights));
  work.assumed |= swiglu.assumed();
  context.run(work, [&](const Stream& stream) {
    tile.for_each([&](std::int64_t begin, std::int64_t count) {
      const TensorView gate = tile.gate(begin, count);
      const TensorView act = tile.keeps() ? tile.act(count) : gate;
      tile.make(begin, count, stream);
      swiglu.run({gate, tile.up(begin, count), act}, {}, stream);
      const TensorView& residual = views.residual;
      tile.product(act, views.weights.down.transpose(0, 1), views.y.slice(0, begin, count), false, stream,
                   residual.elements() > 0 ? residual.slice(0, begin, count) : TensorView());
    });
  });
}

void mlp_backward(Context& context, const MlpBackward& views, std::int64_t tile_tokens) {
  const MlpForward& forward = views.forward;
  const Tile tile(context, forward, tile_tokens, Pass::backward, views.gradients.gate.dtype());
  check_backward(views);
  // Six products, and two more that make gate and up again where they were not kept.
  Work work = tile.work("mlp backward", (tile.keeps() ? 6 : 8) * product_flops_of(forward),
                        3 * token_bytes_of(forward) +
                            tile.count() * (2 * bytes_of(forward.weights) + 2 * bytes_of(views.gradients)));
  const auto& swiglu_backward =
      pick(swiglu_backward_rows(), SwigluBackward{}, context.description(), {}, "swiglu backward");
  work.assumed |= swiglu_backward.assumed();
  const auto sum = [&](const TensorView& gradient, std::string_view name) {
    return F32Sum(context, gradient, name, tile.count() > 1);
  };
  std::vector<F32Sum> wide_sums;
  for (const TensorView& gradient : matrices(views.gradients)) {
    wide_sums.push_back(sum(gradient, "gate and up gradient in f32"));
  }
  const F32Sum down_sum = sum(views.gradients.down, "down gradient in f32");
  context.run(work, [&](const Stream& stream) {
    tile.for_each([&](std::int64_t begin, std::int64_t count) {
      const TensorView x = forward.x.slice(0, begin, count);
      const TensorView dy = views.y_gradient.slice(0, begin, count);
      const TensorView dx = views.x_gradient.slice(0, begin, count);
      const bool add = begin > 0 || !views.gradients_are_zero;
      if (!tile.keeps()) tile.make(begin, count, stream);
      const TensorView dgate = tile.gate(begin, count);
      const TensorView dup = tile.up(begin, count);
      const TensorView act = tile.act(count);
      // dact <- dy down; then in one pass dgate, dup and act take the places of gate, up and dact
      tile.product(dy, forward.weights.down, act, false, stream);
      swiglu_backward.run({.gate = dgate,
                           .up = dup,
                           .act_gradient = act,
                           .gate_gradient = dgate,
                           .up_gradient = dup,
                           .act = act},
                          {}, stream);
      // dDown <- dDown + dy^T act
      tile.product(dy.transpose(0, 1), act, down_sum.view(), add, stream);
      // dGate, dUp <- dGate + dgate^T x, dUp + dup^T x; dx <- dgate gate + dup up
      std::size_t matrix = 0;
      tile.for_each_matrix(forward.weights, tile.gate_up(begin, count),
                           [&](const TensorView& weight, const TensorView& gradient) {
                             tile.product(gradient.transpose(0, 1), x, wide_sums[matrix].view(), add, stream);
                             tile.product(gradient, weight, dx, matrix > 0, stream);
                             ++matrix;
                           });
    });
  });
  for (const F32Sum& one : wide_sums) one.store();
  down_sum.store();
}

}  // namespace headroom
