// One case of `bench attention`, run in a context: rehearsed and for real.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headroom/attention.h"
#include "headroom/cpu.h"
#include "headroom/memory.h"

namespace headroom {

struct AttentionRunCase {
  AttentionProblem problem;
  std::string mask;
  std::vector<std::int32_t> document_starts;
  std::string implementation;
};

// Sets the mask of a problem: what parse_mask reads, and documents:FILE, joined by '+'. Returns where the
// documents start and the last one ends, or nothing. The file has their lengths; what they leave of the
// sequence is one more.
[[nodiscard]] std::vector<std::int32_t> apply_mask(AttentionProblem& problem, std::string_view text);

// How far one row of O is from fp64: the largest difference of its elements. The views are in host memory.
[[nodiscard]] double output_row_error(const AttentionProblem& problem, const AttentionForward& on_host,
                                      std::int64_t batch, std::int64_t head, std::int64_t query);

// Inputs, results and what is kept, for the run; workspaces come and go with forward and backward. On a GPU
// there are several copies, used in turn, so that no run finds its inputs in the cache.
class AttentionRun {
 public:
  AttentionRun(Context& context, const AttentionRunCase& c, const AttentionImplementation& implementation,
               std::int64_t copies = 1);

  void forward(std::size_t turn = 0);
  void backward(std::size_t turn = 0);
  double peak_flops();

  // Largest difference of O from fp64, over a few rows of the first and the last head.
  [[nodiscard]] double sampled_error();

 private:
  struct Set {
    Tensor query, key, value, output, lse, output_gradient, query_gradient, key_gradient, value_gradient,
        saved, starts;

    [[nodiscard]] AttentionForward views() const;
  };
  [[nodiscard]] Stream with_host_threads(Stream stream);

  void load(Set& set, const AttentionImplementation& implementation, Staging& staging);

  Context& context_;
  const AttentionRunCase& case_;
  std::optional<ThreadPool> pool_;
  std::vector<Set> sets_;
};

}  // namespace headroom
