// The all-to-all of a group of ranks that divide heads.
#pragma once

#include <vector>

#include "headroom/memory.h"
#include "headroom/parallel/parallel_schedule.h"

namespace headroom {

// One tensor in both forms.
struct HeadTensor {
  TensorView tokens;  // of the rank's tokens and all heads: [batch, tokens, heads, head_dim]; lse as the
                      // ring of all ranks has it
  TensorView heads;   // of the group's tokens and the rank's heads: [batch, tokens, heads / group, head_dim];
                      // lse as the ring of groups has it
  bool statistics = false;  // lse or its gradient
};

// Moves tensors between the two forms. All of a call have one dtype.
class HeadExchange {
 public:
  HeadExchange(Context& context, const ParallelSchedule& schedule);

  void to_heads(std::span<const HeadTensor> tensors) { move(tensors, true); }
  void to_tokens(std::span<const HeadTensor> tensors) { move(tensors, false); }

 private:
  // The tokens of one member of the group, the heads of another.
  struct Slice {
    int tokens = 0;
    int heads = 0;
  };

  void move(std::span<const HeadTensor> tensors, bool to_heads);
  void exchange(const Tensor& to, std::span<const std::int64_t> to_counts, const Tensor& from,
                std::span<const std::int64_t> from_counts);
  [[nodiscard]] const std::vector<Piece>& pieces_of_member(int member) const;
  [[nodiscard]] std::int64_t heads_of(const HeadTensor& tensor) const;
  [[nodiscard]] std::int64_t elements(std::span<const HeadTensor> tensors, const Slice& slice) const;
  [[nodiscard]] Tensor take(std::string_view name, DType dtype,
                            const std::vector<std::int64_t>& counts) const;
  template <class SliceOf>
  void copy_rows(std::span<const HeadTensor> tensors, const Tensor& packed, const SliceOf& slice_of,
                 bool token_side, bool unpack) const;
  [[nodiscard]] TensorView rows_of(const HeadTensor& tensor, const Slice& slice, const Piece& piece,
                                   bool token_side) const;

  Context& context_;
  const ParallelSchedule& schedule_;
  int member_;         // of the group
  int first_;          // rank of the group, in the schedule
  int rank_of_first_;  // of the Context
};

}  // namespace headroom
