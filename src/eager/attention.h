// Attention as eager PyTorch computes it, forward and backward, each line one operator.
#pragma once

#include <cstdint>
#include <utility>

#include "eager/program.h"
#include "headroom/eager.h"

namespace headroom {

struct EagerAttentionShape {
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim = 0;
  DType dtype = DType::f32;

  [[nodiscard]] Shape queries() const { return {batch, heads_q, seq, head_dim}; }
  [[nodiscard]] Shape keys() const { return {batch, heads_kv, seq, head_dim}; }
  [[nodiscard]] Shape scores() const { return {batch, heads_q, seq, seq}; }
  [[nodiscard]] Shape rows() const { return {batch, heads_q, seq}; }
};

struct QkvGradients {
  Tensor query, key, value;
};

// scaled_dot_product_attention. Its node saves its inputs, which the caller holds, its output and the
// log-sum-exp of every row.
class SdpaAttention {
 public:
  SdpaAttention(EagerProgram& program, const EagerAttentionShape& shape) : program_(program), shape_(shape) {}

  void forward();
  // The output is the caller's too, where it has a name for it.
  [[nodiscard]] Tensor take_output() { return std::move(output_); }
  void drop_rows() { drop(lse_); }
  void drop_saved() { drop(output_, lse_); }
  // With the output's gradient held by the caller.
  [[nodiscard]] QkvGradients backward();

 private:
  [[nodiscard]] QkvGradients backward_cudnn();
  [[nodiscard]] QkvGradients backward_memory_efficient();

  EagerProgram& program_;
  EagerAttentionShape shape_;
  Tensor output_, lse_;
};

// softmax(q k^T / sqrt(d)) v as four operators, with a mask and repeated key heads where a decoder has them.
class NaiveAttention {
 public:
  NaiveAttention(EagerProgram& program, const EagerAttentionShape& shape, bool causal)
      : program_(program), shape_(shape), causal_(causal) {}

  [[nodiscard]] Tensor forward();  // the output, which no node saves
  void drop_saved() { drop(repeated_key_, repeated_value_, mask_, weights_); }
  // An output gradient without a tensor is one that sum() expanded from a scalar.
  [[nodiscard]] QkvGradients backward(Tensor output_gradient);

 private:
  [[nodiscard]] bool repeats() const { return shape_.heads_q != shape_.heads_kv; }
  [[nodiscard]] Tensor like_scores(std::string_view name) const {
    return program_.make(name, Category::attention, shape_.dtype, shape_.scores());
  }
  [[nodiscard]] Tensor like_queries(std::string_view name) const {
    return program_.make(name, Category::activations, shape_.dtype, shape_.queries());
  }
  [[nodiscard]] Tensor sum_over_repeats(Tensor repeated, std::string_view name) const;

  EagerProgram& program_;
  EagerAttentionShape shape_;
  bool causal_;
  Tensor repeated_key_, repeated_value_, mask_, weights_;
};

}  // namespace headroom
