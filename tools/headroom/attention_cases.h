// The one list of attention cases: correctness, gradients and `headroom verify attention` all run it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headroom/attention.h"

namespace headroom {

struct AttentionCase {
  std::string group;  // regular, tails, head sizes, ...
  std::string name;
  AttentionProblem problem;
  std::vector<std::int64_t> document_lengths;  // of every sequence, where the problem has documents
  bool strided = false;       // rows of Q, K, V inside wider rows, as slices of one projection
  bool lse_gradient = false;  // a gradient comes through LSE too
  float spread = 1;           // standard deviation of Q and K: large ones make peaked softmaxes
};

[[nodiscard]] std::vector<AttentionCase> attention_cases();

// How far an implementation is from the truth, beside what is allowed.
struct AttentionErrors {
  // Of each result: O, LSE, dQ, dK, dV, dSink.
  static constexpr int kResults = 6;
  double ours[kResults] = {};     // largest absolute difference from the fp64 reference
  double allowed[kResults] = {};  // twice (gradients three times) that of a plain computation, or the floor
  bool canaries_alive = true;     // nothing was written outside the results and the workspace

  // The largest of ours over what is allowed: at most 1 passes.
  [[nodiscard]] double worst() const;
};

// Runs one case, forward and backward, on the CPU: fp64 reference, plain computation, and the implementation.
[[nodiscard]] AttentionErrors run_attention_case(const AttentionCase& attention_case,
                                                 std::string_view implementation, int threads);

// Whether the implementation serves the case; the reason where it does not.
[[nodiscard]] Support serves(const AttentionCase& attention_case, std::string_view implementation);

}  // namespace headroom
