// The one list of attention cases: correctness, gradients and `headroom verify attention` all run it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headroom/attention.h"

namespace headroom {

struct AttentionCase {
  std::string group;  // regular, tails, head sizes, ...
  std::string name;
  AttentionProblem problem;
  std::vector<std::int64_t> document_lengths;  // of every whole sequence, where the problem has documents
  bool strided = false;       // rows of Q, K, V inside wider rows, as slices of one projection; block lists
                              // shared by all sequences, inside longer lists
  bool odd = false;           // and at no multiple of 16 bytes
  bool lse_gradient = false;  // a gradient comes through LSE too
  float spread = 1;           // standard deviation of Q and K: large ones make peaked softmaxes
};

[[nodiscard]] std::vector<AttentionCase> attention_cases();

// The batch of a case: what its documents and blocks are.
struct AttentionCaseLists {
  std::vector<std::int32_t> document_starts;
  std::vector<std::int32_t> blocks;
  std::array<std::int64_t, 4> block_strides{};

  // Of the lists alone.
  [[nodiscard]] AttentionForward views(const AttentionProblem& problem) const;
};
[[nodiscard]] AttentionCaseLists attention_case_lists(const AttentionCase& attention_case);

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

// Where an implementation runs a case; inputs are made on the host and results are judged there.
struct CaseDevice {
  DeviceDescription description;
  Backend* backend = nullptr;  // whose memory it works in; null: the host's
};

// Runs one case, forward and backward: fp64 reference and plain computation on the CPU, the implementation on
// the CPU or on the device.
[[nodiscard]] AttentionErrors run_attention_case(const AttentionCase& attention_case,
                                                 std::string_view implementation, int threads);
[[nodiscard]] AttentionErrors run_attention_case(const AttentionCase& attention_case,
                                                 const AttentionImplementation& implementation, int threads,
                                                 const CaseDevice& device);

// Runs one case by a function that reads the inputs of the views and writes their results, which lie in host
// memory: O, LSE, dQ, dK, dV and dSink. Where it is one of several processes that each write some of them,
// those that it does not write count as right.
enum class Writes : std::uint8_t { everything, its_part };
[[nodiscard]] AttentionErrors run_attention_case(const AttentionCase& attention_case,
                                                 const std::function<void(const AttentionBackward&)>& run,
                                                 int threads, Writes writes = Writes::everything);

// Whether the implementation serves the case on the CPU, or on the device; the reason where it does not.
[[nodiscard]] Support serves(const AttentionCase& attention_case, std::string_view implementation);
[[nodiscard]] Support serves(const AttentionCase& attention_case, std::string_view implementation,
                             const DeviceDescription& device);

[[nodiscard]] const AttentionImplementation& find_attention(std::string_view name);

}  // namespace headroom
