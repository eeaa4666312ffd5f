// The loss as its formula reads, in fp64:
//   z = hidden . weight, softcapped;  lse = ln sum e^z
//   loss = (1 - s) (lse - z[label]) + s (lse - mean z) + z_loss lse^2, times the token's weight
#include <algorithm>
#include <cmath>

#include "core/pieces.h"
#include "headroom/core/elements.h"
#include "loss/implementations.h"

namespace headroom {
namespace {

Support supports(const LossProblem&, const DeviceDescription& device) {
  return device.kind == DeviceKind::cpu ? Support::yes() : Support::no("the reference runs on a CPU");
}

std::int64_t workspace_bytes(const LossProblem& problem, const DeviceDescription&, Pass pass) {
  Pieces pieces(nullptr);
  pieces.take<double>(problem.vocab);
  if (pass == Pass::forward) return pieces.bytes();
  pieces.take<double>(problem.hidden);
  pieces.take<double>(problem.vocab * problem.hidden);
  return pieces.bytes();
}

std::int64_t saved_bytes(const LossProblem&) {
  return 0;
}

struct Token {
  double lse = 0;
  double loss = 0;  // before its weight
};

// One token's capped logits into z.
Token judge(const LossProblem& problem, const LossForward& views, std::int64_t token, std::int64_t label,
            double* z) {
  double most = -INFINITY;
  double mean = 0;
  for (std::int64_t v = 0; v < problem.vocab; ++v) {
    z[v] = 0;
    for (std::int64_t i = 0; i < problem.hidden; ++i) {
      z[v] += read_element(views.hidden, token * problem.hidden + i) *
              read_element(views.weight, v * problem.hidden + i);
    }
    if (problem.softcap != 0) z[v] = problem.softcap * std::tanh(z[v] / problem.softcap);
    most = std::max(most, z[v]);
    mean += z[v] / static_cast<double>(problem.vocab);
  }
  double sum = 0;
  for (std::int64_t v = 0; v < problem.vocab; ++v) sum += std::exp(z[v] - most);
  Token result{.lse = most + std::log(sum)};
  const double smoothing = problem.label_smoothing;
  result.loss = (1 - smoothing) * (result.lse - z[label]) + smoothing * (result.lse - mean) +
                problem.z_loss * result.lse * result.lse;
  return result;
}

// Calls body(token, label, weight, judged, z) for every token and writes the loss.
template <class Body>
void for_each_token(const LossProblem& problem, const LossForward& views, double* z, const Body& body) {
  const TokenTargets targets(problem, views);
  double total = 0;
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    const double weight = targets.weight(token);
    Token judged;
    if (weight != 0) judged = judge(problem, views, token, targets.label(token), z);
    body(token, targets.label(token), weight, judged, z);
    if (problem.reduction == Reduction::none) write_element(views.loss, token, weight * judged.loss);
    total += weight * judged.loss;
  }
  if (problem.reduction != Reduction::none) write_element(views.loss, 0, total);
}

void forward(const LossProblem& problem, const LossForward& views, TensorView workspace, const Stream&) {
  for_each_token(problem, views, static_cast<double*>(workspace.raw()),
                 [](std::int64_t, std::int64_t, double, const Token&, const double*) {});
}

void backward(const LossProblem& problem, const LossBackward& views, TensorView workspace, const Stream&) {
  Pieces pieces(static_cast<std::byte*>(workspace.raw()));
  auto* logits = pieces.take<double>(problem.vocab);
  auto* row = pieces.take<double>(problem.hidden);
  auto* weight_gradient = pieces.take<double>(problem.vocab * problem.hidden);
  for (std::int64_t i = 0; i < problem.vocab * problem.hidden; ++i) {
    weight_gradient[i] = read_element(views.weight_gradient, i);
  }
  const LossForward& inputs = views.forward;
  for_each_token(
      problem, inputs, logits,
      [&](std::int64_t token, std::int64_t label, double weight, const Token& judged, const double* z) {
        std::fill_n(row, problem.hidden, 0.0);
        const double upstream =
            weight * read_element(views.loss_gradient, problem.reduction == Reduction::none ? token : 0);
        for (std::int64_t v = 0; v < problem.vocab && weight != 0; ++v) {
          // dz <- (1 + 2 z_loss lse) p - (1 - s) [v = label] - s / vocab, through the softcap
          double dz = (1 + 2 * problem.z_loss * judged.lse) * std::exp(z[v] - judged.lse) -
                      problem.label_smoothing / static_cast<double>(problem.vocab);
          if (v == label) dz -= 1 - static_cast<double>(problem.label_smoothing);
          if (problem.softcap != 0) dz *= 1 - std::pow(z[v] / problem.softcap, 2);
          dz *= upstream;
          for (std::int64_t i = 0; i < problem.hidden; ++i) {
            row[i] += dz * read_element(inputs.weight, v * problem.hidden + i);
            weight_gradient[v * problem.hidden + i] +=
                dz * read_element(inputs.hidden, token * problem.hidden + i);
          }
        }
        for (std::int64_t i = 0; i < problem.hidden; ++i) {
          write_element(views.hidden_gradient, token * problem.hidden + i, row[i]);
        }
      });
  for (std::int64_t i = 0; i < problem.vocab * problem.hidden; ++i) {
    write_element(views.weight_gradient, i, weight_gradient[i]);
  }
}

}  // namespace

const LossImplementation& reference_loss() {
  static constexpr LossImplementation kReference{.name = "reference",
                                                 .supports = supports,
                                                 .workspace_bytes = workspace_bytes,
                                                 .saved_bytes = saved_bytes,
                                                 .forward = forward,
                                                 .backward = backward};
  return kReference;
}

}  // namespace headroom
