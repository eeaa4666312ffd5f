#include "headroom/ops/mlp.h"

#include <algorithm>

#include "ops/arguments.h"
#include "ops/matmul.h"
#include "ops/swiglu.h"
#include "ops/work.h"

namespace headroom {
namespace {

// A tile of what is as wide as the MLP, as the products see it: so that a rehearsal refuses what a run would.
TensorView wide(const MlpForward& views) {
  return {nullptr, views.x.dtype(), {views.x.extent(0), views.weights.gate.extent(0)}};
}

void check_forward(const MlpForward& views) {
  const Arguments arguments("mlp");
  arguments.shape(views.y, views.x.shape(), "y");
  check_product(views.x, views.weights.gate.transpose(0, 1), wide(views));
  check_product(wide(views), views.weights.down.transpose(0, 1), views.y);
}

void check_backward(const MlpBackward& views) {
  const Arguments arguments("mlp");
  const MlpForward& forward = views.forward;
  arguments.shape(views.y_gradient, forward.x.shape(), "y gradient");
  arguments.shape(views.x_gradient, forward.x.shape(), "x gradient");
  const auto gradient = [&](const TensorView& view, const TensorView& weight, std::string_view what) {
    arguments.dtype(view, DType::f32, what);
    arguments.shape(view, weight.shape(), what);
  };
  gradient(views.gradients.gate, forward.weights.gate, "gate gradient");
  gradient(views.gradients.up, forward.weights.up, "up gradient");
  gradient(views.gradients.down, forward.weights.down, "down gradient");
  check_product(views.y_gradient, forward.weights.down, wide(forward));
  check_product(wide(forward), forward.weights.gate, views.x_gradient);
}

// The buffers of one tile, taken before the loop over tiles.
class Tile {
 public:
  Tile(Context& context, const MlpForward& views, std::int64_t tile_tokens, Pass pass)
      : views_(views), product_(product_row(context.description())) {
    const Arguments arguments("mlp");
    arguments.rank(views.x, 2, 2, "x");
    const std::int64_t hidden = views.x.extent(1);
    const std::int64_t mlp = views.weights.gate.extent(0);
    arguments.shape(views.weights.gate, {mlp, hidden}, "gate weight");
    arguments.shape(views.weights.up, {mlp, hidden}, "up weight");
    arguments.shape(views.weights.down, {hidden, mlp}, "down weight");
    if (keeps()) {
      arguments.shape(views.gate, {views.x.extent(0), mlp}, "kept gate");
      arguments.shape(views.up, {views.x.extent(0), mlp}, "kept up");
    }
    check(tile_tokens >= 0, "mlp: a tile of {} tokens is negative; 0 takes all at once", tile_tokens);
    const std::int64_t tokens = std::max<std::int64_t>(views.x.extent(0), 1);
    tokens_ = tile_tokens == 0 ? tokens : std::min(tile_tokens, tokens);
    const auto take = [&](std::string_view what) {
      return context.allocate(
          {.name = what, .category = Category::workspace, .dtype = views.x.dtype(), .shape = {tokens_, mlp}});
    };
    if (!keeps() || pass == Pass::backward) {
      gate_ = take("mlp gate tile");
      up_ = take("mlp up tile");
    }
    if (pass == Pass::backward || keeps()) act_ = take("mlp activation tile");
    const DeviceDescription& device = context.description();
    const DType dtype = views.x.dtype();
    std::int64_t bytes = std::max(product_workspace_bytes(mlp, hidden, device, dtype),
                                  product_workspace_bytes(hidden, mlp, device, dtype));
    if (pass == Pass::backward) {
      bytes = std::max({bytes, product_workspace_bytes(mlp, tokens_, device),
                        product_workspace_bytes(hidden, tokens_, device)});
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
  [[nodiscard]] bool keeps() const { return views_.gate.elements() > 0; }

  // a b into c, all of one tile or a weight.
  void product(const TensorView& a, const TensorView& b, const TensorView& c, bool add,
               const Stream& stream) const {
    product_.run({a, b, c, add}, workspace_, stream);
  }
  // gate and up of a tile, where forward keeps them or in the tile's own buffers.
  void make(std::int64_t begin, std::int64_t count, const TensorView& gate, const TensorView& up,
            const Stream& stream) const {
    const TensorView x = views_.x.slice(0, begin, count);
    product(x, views_.weights.gate.transpose(0, 1), gate, false, stream);
    product(x, views_.weights.up.transpose(0, 1), up, false, stream);
  }
  [[nodiscard]] TensorView gate(std::int64_t count) const { return gate_.view().slice(0, 0, count); }
  [[nodiscard]] TensorView up(std::int64_t count) const { return up_.view().slice(0, 0, count); }
  [[nodiscard]] TensorView act(std::int64_t count) const { return act_.view().slice(0, 0, count); }

 private:
  const MlpForward& views_;
  std::int64_t tokens_ = 0;
  Tensor gate_, up_, act_;  // [tokens_, mlp]
  Tensor workspace_;
  const ProductRow& product_;
};

double product_flops_of(const MlpForward& views) {
  return product_flops(views.x.extent(0), views.weights.gate.extent(0), views.weights.gate.extent(1));
}
double moved_bytes_of(const MlpForward& views) {
  return moved_bytes(
      {views.x, views.y, views.gate, views.up, views.weights.gate, views.weights.up, views.weights.down});
}

}  // namespace

void mlp_forward(Context& context, const MlpForward& views, std::int64_t tile_tokens) {
  const Tile tile(context, views, tile_tokens, Pass::forward);
  check_forward(views);
  const auto& swiglu = pick(swiglu_forward_rows(), SwigluForward{}, context.description(), {}, "swiglu");
  Work work = tile.work("mlp", 3 * product_flops_of(views), moved_bytes_of(views));
  work.assumed |= swiglu.assumed();
  context.run(work, [&](const Stream& stream) {
    tile.for_each([&](std::int64_t begin, std::int64_t count) {
      const TensorView gate = tile.keeps() ? views.gate.slice(0, begin, count) : tile.gate(count);
      const TensorView up = tile.keeps() ? views.up.slice(0, begin, count) : tile.up(count);
      const TensorView act = tile.keeps() ? tile.act(count) : gate;
      tile.make(begin, count, gate, up, stream);
      swiglu.run({gate, up, act}, {}, stream);
      tile.product(act, views.weights.down.transpose(0, 1), views.y.slice(0, begin, count), false, stream);
    });
  });
}

void mlp_backward(Context& context, const MlpBackward& views, std::int64_t tile_tokens) {
  const MlpForward& forward = views.forward;
  const Tile tile(context, forward, tile_tokens, Pass::backward);
  check_backward(views);
  // Six products, and two more that make gate and up again where they were not kept.
  Work work = tile.work("mlp backward", (tile.keeps() ? 6 : 8) * product_flops_of(forward),
                        3 * moved_bytes_of(forward));
  const auto& swiglu = pick(swiglu_forward_rows(), SwigluForward{}, context.description(), {}, "swiglu");
  const auto& swiglu_backward =
      pick(swiglu_backward_rows(), SwigluBackward{}, context.description(), {}, "swiglu backward");
  work.assumed |= swiglu.assumed() || swiglu_backward.assumed();
  context.run(work, [&](const Stream& stream) {
    tile.for_each([&](std::int64_t begin, std::int64_t count) {
      const TensorView x = forward.x.slice(0, begin, count);
      const TensorView dy = views.y_gradient.slice(0, begin, count);
      const TensorView dx = views.x_gradient.slice(0, begin, count);
      TensorView gate = tile.gate(count);
      TensorView up = tile.up(count);
      if (tile.keeps()) {
        gate = forward.gate.slice(0, begin, count);
        up = forward.up.slice(0, begin, count);
      } else {
        tile.make(begin, count, gate, up, stream);
      }
      const TensorView act = tile.act(count);
      // dDown <- dDown + dy^T act
      swiglu.run({gate, up, act}, {}, stream);
      tile.product(dy.transpose(0, 1), act, views.gradients.down, true, stream);
      // dact <- dy down, and through the gate
      tile.product(dy, forward.weights.down, act, false, stream);
      const TensorView dgate = tile.gate(count);
      const TensorView dup = tile.up(count);
      swiglu_backward.run(
          {.gate = gate, .up = up, .act_gradient = act, .gate_gradient = dgate, .up_gradient = dup}, {},
          stream);
      tile.product(dgate.transpose(0, 1), x, views.gradients.gate, true, stream);
      tile.product(dup.transpose(0, 1), x, views.gradients.up, true, stream);
      // dx <- dgate gate + dup up
      tile.product(dgate, forward.weights.gate, dx, false, stream);
      tile.product(dup, forward.weights.up, dx, true, stream);
    });
  });
}

}  // namespace headroom
