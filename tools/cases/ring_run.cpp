#include "ring_run.h"

#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "headroom/core/checked.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

// body(row of the whole tensor, row of the rank's, dense, both in bytes; bytes): along `dimension`, a row is
// what is contiguous behind it. Of lse, [batch, heads, tokens], the rank has its pieces one after another.
template <class Body>
void for_each_row(const ParallelSchedule& schedule, int rank, const TensorView& whole, int dimension,
                  const Body& body) {
  const std::int64_t element = size_bytes(whole.dtype());
  const std::int64_t tokens = schedule.partition().tokens(rank);
  std::int64_t before = 0;
  for (const Piece& piece : schedule.partition().pieces[static_cast<std::size_t>(rank)]) {
    if (dimension == 2) {
      const std::int64_t heads = whole.extent(1);
      for (std::int64_t i = 0; i < whole.extent(0) * heads; ++i) {
        body(whole.offset(i / heads, i % heads, piece.begin) * element,
             (whole.extent(0) * heads * before + i * piece.size()) * element, piece.size() * element);
      }
    } else {
      for (std::int64_t b = 0; b < whole.extent(0); ++b) {
        for (std::int64_t i = 0; i < piece.size(); ++i) {
          for (std::int64_t h = 0; h < whole.extent(2); ++h) {
            const std::int64_t row = (b * tokens + before + i) * whole.extent(2) + h;
            body(whole.offset(b, piece.begin + i, h) * element, row * whole.extent(3) * element,
                 whole.extent(3) * element);
          }
        }
      }
    }
    before += piece.size();
  }
}

}  // namespace

RingRun::RingRun(Context& context, const ParallelSchedule& schedule, const AttentionBackward& whole,
                 std::string_view pinned)
    : context_(context), schedule_(schedule), whole_(whole), pinned_(pinned), rank_(context.ranks().rank) {
  const AttentionProblem& problem = schedule.problem();
  const AttentionForward& forward = whole.forward;
  context.phase(Phase::load, [&] {
    query_ = load("query", forward.query, 1);
    key_ = load("key", forward.key, 1);
    value_ = load("value", forward.value, 1);
    output_gradient_ = load("output gradient", whole.output_gradient, 1);
    lse_gradient_ = load("lse gradient", whole.lse_gradient, 2);
    output_ = make("output", problem.dtype_of_output(), query_.view().shape());
    lse_ = make("lse", problem.dtype_of_sums(),
                {problem.batch * problem.heads_q * schedule.partition().tokens(rank_)});
    query_gradient_ = make("query gradient", problem.dtype_of_gradients(), query_.view().shape());
    key_gradient_ = make("key gradient", problem.dtype_of_gradients(), key_.view().shape());
    value_gradient_ = make("value gradient", problem.dtype_of_gradients(), key_.view().shape());
    sinks_gradient_ = make("sinks gradient", DType::f32, {problem.sinks ? problem.heads_q : 0});
    const auto upload = [&](const Tensor& tensor, const TensorView& from) {
      context_.upload(tensor,
                      {static_cast<const std::byte*>(from.raw()), static_cast<std::size_t>(from.bytes())});
    };
    sinks_ = make("sinks", DType::f32, {problem.sinks ? problem.heads_q : 0});
    if (problem.sinks) upload(sinks_, forward.sinks);
    starts_ = make("document starts", DType::i32,
                   {problem.mask.max_documents == 0 ? 0 : problem.batch, problem.mask.max_documents + 1});
    if (problem.mask.max_documents > 0) upload(starts_, forward.document_starts);
    blocks_ = load_blocks(forward.blocks);
  });
}

Tensor RingRun::make(std::string_view name, DType dtype, const Shape& shape) {
  return context_.allocate({.name = name,
                            .category = Category::attention,
                            .dtype = dtype,
                            .shape = shape,
                            .lifetime = Lifetime::run});
}

Tensor RingRun::load(std::string_view name, const TensorView& whole, int dimension) {
  const std::int64_t tokens = whole.elements() == 0 ? 0 : schedule_.partition().tokens(rank_);
  const Shape shape = dimension == 2 ? Shape{tokens == 0 ? 0 : whole.extent(0) * whole.extent(1) * tokens}
                                     : Shape{whole.extent(0), tokens, whole.extent(2), whole.extent(3)};
  Tensor tensor = make(name, whole.dtype(), shape);
  std::vector<std::byte> host(static_cast<std::size_t>(tensor.view().bytes()));
  if (!context_.phantom() && !host.empty()) {
    for_each_row(schedule_, rank_, whole, dimension,
                 [&](std::int64_t from, std::int64_t to, std::int64_t bytes) {
                   std::memcpy(host.data() + to, static_cast<const std::byte*>(whole.raw()) + from,
                               static_cast<std::size_t>(bytes));
                 });
  }
  context_.upload(tensor, host);
  return tensor;
}

// The lists of the rank's query tiles.
Tensor RingRun::load_blocks(const TensorView& whole) {
  const AttentionProblem& problem = schedule_.problem();
  const Mask& mask = problem.mask;
  if (mask.block_rows == 0) return make("block lists", DType::i32, {0});
  std::vector<std::int32_t> lists;
  std::int64_t tiles = 0;
  const auto& pieces = schedule_.partition().pieces[static_cast<std::size_t>(rank_)];
  for (const Piece& piece : pieces) tiles += divide_up(piece.size(), mask.block_rows);
  for (std::int64_t item = 0; item < problem.batch * problem.heads_kv; ++item) {
    for (const Piece& piece : pieces) {
      for (std::int64_t q = piece.begin; q < piece.end; q += mask.block_rows) {
        const std::int32_t* list =
            whole.data<std::int32_t>() +
            whole.offset(item / problem.heads_kv, item % problem.heads_kv, q / mask.block_rows);
        lists.insert(lists.end(), list, list + mask.max_blocks_per_row);
      }
    }
  }
  Tensor tensor =
      make("block lists", DType::i32, {problem.batch, problem.heads_kv, tiles, mask.max_blocks_per_row});
  context_.upload(tensor, std::as_bytes(std::span(lists)));
  return tensor;
}

RingForward RingRun::views() const {
  return {.inputs = {.query = query_,
                     .key = key_,
                     .value = value_,
                     .sinks = sinks_,
                     .document_starts = starts_,
                     .blocks = blocks_},
          .output = output_,
          .lse = lse_};
}

void RingRun::forward() {
  context_.phase(Phase::forward, [&] { parallel_attention_forward(context_, schedule_, views(), pinned_); });
}

void RingRun::backward() {
  context_.phase(Phase::backward, [&] {
    parallel_attention_backward(context_, schedule_,
                                {.forward = views(),
                                 .output_gradient = output_gradient_,
                                 .lse_gradient = lse_gradient_,
                                 .query_gradient = query_gradient_,
                                 .key_gradient = key_gradient_,
                                 .value_gradient = value_gradient_,
                                 .sinks_gradient = sinks_gradient_},
                                pinned_);
  });
}

void RingRun::store(const Tensor& tensor, const TensorView& whole, int dimension) {
  std::vector<std::byte> host(static_cast<std::size_t>(tensor.view().bytes()));
  context_.download(host, tensor);
  if (host.empty() || context_.phantom()) return;
  for_each_row(schedule_, rank_, whole, dimension,
               [&](std::int64_t to, std::int64_t from, std::int64_t bytes) {
                 std::memcpy(static_cast<std::byte*>(whole.raw()) + to, host.data() + from,
                             static_cast<std::size_t>(bytes));
               });
}

void RingRun::store() {
  context_.phase(Phase::compare, [&] {
    store(output_, whole_.forward.output, 1);
    store(lse_, whole_.forward.lse, 2);
    store(query_gradient_, whole_.query_gradient, 1);
    store(key_gradient_, whole_.key_gradient, 1);
    store(value_gradient_, whole_.value_gradient, 1);
    // Every rank has all of it; one of them is enough, so that threads do not write to one place.
    std::vector<std::byte> sinks(static_cast<std::size_t>(sinks_gradient_.view().bytes()));
    context_.download(sinks, sinks_gradient_);
    if (rank_ == 0 && !sinks.empty() && !context_.phantom()) {
      std::memcpy(whole_.sinks_gradient.raw(), sinks.data(), sinks.size());
    }
  });
}

Layout rehearse_ring(const ParallelSchedule& schedule, const AttentionBackward& whole,
                     const DeviceDescription& device, const Ranks& ranks, std::string_view pinned) {
  Context context(device, ranks);
  {
    RingRun run(context, schedule, whole, pinned);
    run.forward();
    run.backward();
    run.store();
  }
  return make_layout(std::move(context).take_ledger());
}

void on_thread_ranks(int count, const LinkModel& link, const std::function<void(Communicator&)>& body) {
  ThreadRanks ranks(count, kDefaultTimeout, link);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(ranks.communicator(rank));
        } catch (...) {
          {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          ranks.communicator(rank).abort(fmt::format("rank {} ended with an error", rank));
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

void run_ring_rank(const ParallelSchedule& schedule, const AttentionBackward& whole,
                   Communicator& communicator, Backend& backend, std::string_view pinned) {
  Context context(backend,
                  rehearse_ring(schedule, whole, backend.description(), communicator.ranks(), pinned),
                  &communicator);
  RingRun run(context, schedule, whole, pinned);
  run.forward();
  run.backward();
  run.store();
}

MakeBackend cpu_of_each_rank() {
  return [](int) { return std::make_unique<CpuBackend>(1); };
}

}  // namespace headroom
