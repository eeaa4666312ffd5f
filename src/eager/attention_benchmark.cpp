// The attention benchmarks whose measured memory was published: q, k, v [batch, seq, head_dim], one head.
#include <utility>

#include "eager/attention.h"

namespace headroom {
namespace {

using Form = EagerAttentionBenchmark::Form;

// q.grad, k.grad, v.grad
struct Gradients {
  Tensor query, key, value;

  // The first gradient is kept as it is; later ones are added to it in place.
  static void accumulate(Tensor& gradient, Tensor fresh) {
    if (gradient.view().elements() == 0) gradient = std::move(fresh);
  }
  void add(QkvGradients fresh) {
    accumulate(value, std::move(fresh.value));
    accumulate(query, std::move(fresh.query));
    accumulate(key, std::move(fresh.key));
  }
  void set_to_none() { drop(query, key, value); }
};

class Benchmark {
 public:
  Benchmark(EagerProgram& program, const EagerAttentionBenchmark& benchmark)
      : program_(program),
        form_(benchmark.form),
        shape_{.batch = benchmark.batch,
               .seq = benchmark.seq,
               .head_dim = benchmark.head_dim,
               .dtype = benchmark.dtype} {}

  void run() {
    Tensor query, key, value;
    {
      const auto stage = program_.context().stage(StageKind::inputs);
      query = like_inputs("q");
      key = like_inputs("k");
      value = like_inputs("v");
      // A benchmark runs many sizes in one process: its first products have taken the workspaces, which stay.
      program_.product_in_forward();
      program_.product_in_backward();
    }
    for (std::int64_t step = 0; step < 2; ++step) {
      const auto stage = program_.context().stage(StageKind::step, step);
      switch (form_) {
        case Form::written_out: step_written_out(); break;
        case Form::softmax: step_softmax(); break;
        case Form::sdpa: step_sdpa(); break;
      }
    }
  }

 private:
  [[nodiscard]] Tensor like_inputs(std::string_view name) const {
    return program_.make(name, Category::activations, shape_.dtype, shape_.queries());
  }
  [[nodiscard]] Tensor like_scores(std::string_view name) const {
    return program_.make(name, Category::attention, shape_.dtype, shape_.scores());
  }
  [[nodiscard]] Tensor like_rows(std::string_view name) const {
    return program_.make(name, Category::attention, shape_.dtype, shape_.rows());
  }
  [[nodiscard]] Tensor scalar(std::string_view name) const {
    return program_.make(name, Category::activations, shape_.dtype, {1});
  }

  void step_written_out() {
    Tensor indices, exponentials, sums, weights;  // what autograd saves
    {
      const auto stage = program_.context().stage(StageKind::forward);
      // scores = q @ k.transpose(-2, -1) / math.sqrt(d)
      Tensor raw = like_scores("q @ k^T");
      Tensor scores = like_scores("scores");
      drop(raw);
      // def softmax(x):  # the caller's `scores` is alive all along
      //   shifted = x - torch.max(x, dim=-1, keepdim=True)[0]  # max saves its indices
      Tensor maxima = like_rows("max");
      indices = program_.integers("indices of max", shape_.rows().elements());
      Tensor shifted = like_scores("shifted = x - max");
      drop(maxima);
      //   e = torch.exp(shifted)  # saves its result
      exponentials = like_scores("e = exp(shifted)");
      //   return e / torch.sum(e, dim=-1, keepdim=True)  # saves both
      sums = like_rows("sum(e)");
      weights = like_scores("weights = e / sum(e)");
      drop(shifted);
      // return weights @ v  # saves weights
      const Tensor output = like_inputs("weights @ v");
      drop(scores);
      // loss = attention(q, k, v).sum(): the name `loss` lets go of the last step's
      loss_ = scalar("loss");
    }
    const auto stage = program_.context().stage(StageKind::backward);
    const Tensor ones = scalar("ones_like(loss)");
    // weights @ v; sum()'s gradient has stride 0 and each product copies it
    Tensor value_gradient = like_inputs("weights^T @ grad_out");
    (void)like_inputs("grad_out.contiguous()");
    Tensor weights_gradient = like_scores("grad_out @ v^T");
    (void)like_inputs("grad_out.contiguous()");
    Gradients::accumulate(gradients_.value, std::move(value_gradient));
    drop(value_gradient, weights);
    // e / sum(e): the divisor's gradient is -grad * ((e / sum) / sum), four temporaries of one expression
    Tensor negated = like_scores("-grad");
    Tensor quotient = like_scores("e / sum");
    Tensor second_quotient = like_scores("(e / sum) / sum");
    Tensor product = like_scores("-grad * ((e / sum) / sum)");
    drop(second_quotient, quotient, negated);
    Tensor exponentials_gradient = like_scores("grad / sum");
    Tensor sums_gradient = like_rows("gradient of sum(e)");
    drop(product, weights_gradient, sums);
    drop(sums_gradient);  // expanded and added in place
    // exp
    Tensor scores_gradient = like_scores("grad * e");
    drop(exponentials_gradient, exponentials);
    // x - max: the gradient of max is -grad, summed over the row, then scattered to where the maximum was
    Tensor negative = like_scores("-grad");
    Tensor maxima_gradient = like_rows("gradient of max");
    drop(negative);
    Tensor scattered = like_scores("gradient of max, scattered");
    drop(maxima_gradient, indices, scattered);
    // / sqrt(d), q @ k^T
    scores_gradient = like_scores("grad / sqrt(d)");
    Tensor transposed = like_inputs("q^T @ grad");
    Tensor query_gradient = like_inputs("grad @ k");
    drop(scores_gradient);
    Gradients::accumulate(gradients_.query, std::move(query_gradient));
    drop(query_gradient);
    if (gradients_.key.view().elements() == 0) gradients_.key = like_inputs("k.grad");
  }

  void step_softmax() {
    gradients_.set_to_none();
    NaiveAttention attention(program_, shape_, false);
    {
      const auto stage = program_.context().stage(StageKind::forward);
      output_ = attention.forward();
    }
    const auto stage = program_.context().stage(StageKind::backward);
    const Tensor loss = scalar("out.sum()");
    const Tensor ones = scalar("ones_like(loss)");
    gradients_.add(attention.backward({}));
  }

  void step_sdpa() {
    gradients_.set_to_none();
    SdpaAttention attention(program_, shape_);
    {
      const auto stage = program_.context().stage(StageKind::forward);
      attention.forward();
      drop(output_);  // `out` is this step's now
    }
    const auto stage = program_.context().stage(StageKind::backward);
    const Tensor loss = scalar("out.sum()");
    const Tensor ones = scalar("ones_like(loss)");
    {
      // sum()'s gradient has stride 0, which the kernels do not take. cuDNN allocates the results first, the
      // other kernel the copy; both are alive when it counts.
      const Tensor output_gradient = like_inputs("grad_out.contiguous()");
      gradients_.add(attention.backward());
    }
    output_ = attention.take_output();
    attention.drop_saved();
  }

  EagerProgram& program_;
  Form form_;
  EagerAttentionShape shape_;
  Tensor loss_, output_;
  Gradients gradients_;
};

}  // namespace

Ledger rehearse_attention_benchmark(const EagerAttentionBenchmark& benchmark,
                                    const DeviceDescription& device) {
  check(benchmark.batch >= 1 && benchmark.seq >= 1 && benchmark.head_dim >= 1,
        "attention of batch {}, {} tokens and head_dim {} is empty", benchmark.batch, benchmark.seq,
        benchmark.head_dim);
  Context context(device);
  context.phase(Phase::step, [&] {
    EagerProgram program(context);
    Benchmark(program, benchmark).run();
  });
  return std::move(context).take_ledger();
}

}  // namespace headroom
