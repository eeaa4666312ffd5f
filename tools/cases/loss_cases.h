// The one list of loss cases: correctness, gradients and `headroom verify loss` all run it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "case_tools.h"
#include "headroom/loss.h"

namespace headroom {

struct LossCase {
  std::string group;  // sizes, options, chunks, ...
  std::string name;
  LossProblem problem;
  double ignored = 0;  // share of the labels that count for nothing
  float spread = 1;    // standard deviation of the logits: of thousands, e^logit overflows
};

[[nodiscard]] std::vector<LossCase> loss_cases();

[[nodiscard]] const LossImplementation& find_loss(std::string_view name);

// loss, dHidden, dWeight.
inline constexpr int kLossResults = 3;

// How far an implementation is from the truth, beside what is allowed.
struct LossErrors {
  std::array<double, kLossResults> ours{};  // largest absolute difference from the fp64 reference
  std::array<double, kLossResults> allowed{};
  bool canaries_alive = true;  // nothing was written outside the results, what is saved and the workspace

  // The largest of ours over what is allowed: at most 1 passes.
  [[nodiscard]] double worst() const;
};

struct LossResults {
  std::array<std::vector<double>, kLossResults> values;
  std::vector<double> token_losses{};  // each with its weight; of the plain computation alone
  bool forward_agrees = true;          // forward made the loss that backward made, bit for bit
  bool canaries_alive = true;
};

// A case with its inputs, the truth in fp64 and a plain computation in the case's precision: made once,
// for every implementation to be held against.
class PreparedLossCase {
 public:
  explicit PreparedLossCase(LossCase c);

  [[nodiscard]] const LossCase& the_case() const { return case_; }

  // Forward and backward of one implementation; the description says on how many threads and with which
  // vectors. The problem may differ from the case's in its chunks.
  [[nodiscard]] LossResults run(const LossProblem& problem, std::string_view implementation,
                                const DeviceDescription& device) const;
  // With a backend the implementation runs in its memory; the truth and the plain computation are the CPU's.
  [[nodiscard]] LossErrors judge(std::string_view implementation, const DeviceDescription& device,
                                 Backend* backend = nullptr) const;

 private:
  [[nodiscard]] LossResults run(const LossProblem& problem, std::string_view implementation,
                                const DeviceDescription& device, bool in_double, Backend* backend) const;
  void make_inputs();
  [[nodiscard]] LossResults compute_plainly(DType logits) const;

  LossCase case_;
  Guarded hidden_, weight_, token_weights_, loss_gradient_, old_weight_gradient_;
  std::vector<std::int32_t> labels_;
  LossResults truth_;
  LossResults plain_;
};

// Whether the implementation serves the case on the CPU, or on the device; the reason where it does not.
[[nodiscard]] Support serves(const LossCase& c, std::string_view implementation);
[[nodiscard]] Support serves(const LossCase& c, std::string_view implementation,
                             const DeviceDescription& device);

}  // namespace headroom
