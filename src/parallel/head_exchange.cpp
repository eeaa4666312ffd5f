#include "parallel/head_exchange.h"

#include <array>
#include <cstring>
#include <numeric>

#include "headroom/cpu/thread_pool.h"
#include "parallel/cuda/rows.h"

namespace headroom {
namespace {

// Where tensors with the rows of these pieces have those of an interval, which is in one of them.
struct Rows {
  std::int64_t before = 0;  // rows of the pieces before that one
  std::int64_t size = 0;    // of that piece
  std::int64_t first = 0;   // row of the interval in that piece

  Rows(const std::vector<Piece>& pieces, const Piece& interval) {
    for (const Piece& piece : pieces) {
      size = piece.size();
      first = interval.begin - piece.begin;
      if (interval.end <= piece.end) break;
      before += size;
    }
  }
};

std::int64_t width(const HeadTensor& tensor) {
  return tensor.statistics ? 1 : tensor.tokens.extent(3);
}

TensorPart part(const Tensor& tensor, std::span<const std::int64_t> counts, int member) {
  const auto count = counts.begin() + member;
  return {tensor, std::accumulate(counts.begin(), count, std::int64_t{0}), *count};
}

void copy_on_cpu(const TensorView& rows, std::byte* packed, bool unpack, const Stream& stream) {
  const std::int64_t heads = rows.extent(2);
  const std::int64_t element = size_bytes(rows.dtype());
  const std::int64_t row_bytes = rows.extent(3) * element;
  parallel_for(stream, rows.extent(0) * rows.extent(1), [&](std::int64_t item) {
    for (std::int64_t h = 0; h < heads; ++h) {
      std::byte* there = packed + (item * heads + h) * row_bytes;
      std::byte* here = static_cast<std::byte*>(rows.raw()) +
                        rows.offset(item / rows.extent(1), item % rows.extent(1), h) * element;
      std::memcpy(unpack ? here : there, unpack ? there : here, static_cast<std::size_t>(row_bytes));
    }
  });
}

void move_on_gpu(cuda::RowMover& mover, const TensorView& rows, std::byte* packed) {
  const std::int64_t element = size_bytes(rows.dtype());
  for (std::int64_t b = 0; b < rows.extent(0); ++b) {
    mover.add({.tensor = static_cast<std::byte*>(rows.raw()) + b * rows.stride(0) * element,
               .row_stride = rows.stride(1),
               .head_stride = rows.stride(2),
               .packed = packed + b * rows.extent(1) * rows.extent(2) * rows.extent(3) * element,
               .rows = rows.extent(1),
               .heads = rows.extent(2)});
  }
}

}  // namespace

HeadExchange::HeadExchange(Context& context, const ParallelSchedule& schedule)
    : context_(context), schedule_(schedule) {
  const Ranks ranks = context.ranks();
  check(ranks.count % schedule.ranks() == 0, "the schedule is for {} ranks, and there are {}",
        schedule.ranks(), ranks.count);
  member_ = ranks.rank % schedule.group();
  first_ = ranks.rank % schedule.ranks() - member_;
  rank_of_first_ = ranks.rank - member_;
}

void HeadExchange::move(std::span<const HeadTensor> tensors, bool to_heads) {
  // Member p gets rows of these tokens and heads from this rank, and gives those.
  const auto sent = [&](int p) { return to_heads ? Slice{member_, p} : Slice{p, member_}; };
  const auto received = [&](int p) { return to_heads ? Slice{p, member_} : Slice{member_, p}; };
  std::vector<std::int64_t> from_counts;
  std::vector<std::int64_t> to_counts;
  for (int p = 0; p < schedule_.group(); ++p) {
    from_counts.push_back(elements(tensors, sent(p)));
    to_counts.push_back(elements(tensors, received(p)));
  }
  const DType dtype = tensors[0].tokens.dtype();
  const Tensor from = take("all-to-all, sent", dtype, from_counts);
  const Tensor to = take("all-to-all, received", dtype, to_counts);
  copy_rows(tensors, from, sent, to_heads, false);
  exchange(to, to_counts, from, from_counts);
  copy_rows(tensors, to, received, !to_heads, true);
}

void HeadExchange::exchange(const Tensor& to, std::span<const std::int64_t> to_counts, const Tensor& from,
                            std::span<const std::int64_t> from_counts) {
  std::vector<Parcel> sends;
  std::vector<Parcel> receives;
  for (int p = 0; p < schedule_.group(); ++p) {
    if (p == member_) continue;
    sends.push_back({rank_of_first_ + p, part(from, from_counts, p)});
    receives.push_back({rank_of_first_ + p, part(to, to_counts, p)});
  }
  const Ticket arrived = context_.exchange(sends, receives, {"all-to-all of heads"});
  context_.copy(StreamId::main, part(to, to_counts, member_), part(from, from_counts, member_));
  context_.wait(StreamId::main, arrived);
}

const std::vector<Piece>& HeadExchange::pieces_of_member(int member) const {
  const int rank = first_ + member;
  return schedule_.partition().pieces[static_cast<std::size_t>(rank)];
}

std::int64_t HeadExchange::heads_of(const HeadTensor& tensor) const {
  return (tensor.statistics ? schedule_.problem().heads_q : tensor.tokens.extent(2)) / schedule_.group();
}

std::int64_t HeadExchange::elements(std::span<const HeadTensor> tensors, const Slice& slice) const {
  const std::int64_t rows = schedule_.problem().batch * schedule_.partition().tokens(first_ + slice.tokens);
  std::int64_t sum = 0;
  for (const HeadTensor& tensor : tensors) sum += rows * heads_of(tensor) * width(tensor);
  return sum;
}

Tensor HeadExchange::take(std::string_view name, DType dtype, const std::vector<std::int64_t>& counts) const {
  return context_.allocate({.name = name,
                            .category = Category::communication,
                            .dtype = dtype,
                            .shape = {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}});
}

// Packs the slices of all members one after the other, or unpacks them.
template <class SliceOf>
void HeadExchange::copy_rows(std::span<const HeadTensor> tensors, const Tensor& packed,
                             const SliceOf& slice_of, bool token_side, bool unpack) const {
  const Work work{.kernel = unpack ? "heads unpack" : "heads pack",
                  .bytes = 2 * static_cast<double>(packed.view().bytes())};
  context_.run(work, [&](const Stream& stream) {
    auto* next = static_cast<std::byte*>(packed.view().raw());
    const bool on_gpu = stream.device->kind == DeviceKind::cuda;
    cuda::RowMover mover(unpack ? cuda::RowMove::unpack : cuda::RowMove::pack, packed.view().dtype(),
                         width(tensors[0]), stream);
    for (int p = 0; p < schedule_.group(); ++p) {
      for (const HeadTensor& tensor : tensors) {
        for (const Piece& piece : pieces_of_member(slice_of(p).tokens)) {
          const TensorView rows = rows_of(tensor, slice_of(p), piece, token_side);
          if (on_gpu) {
            move_on_gpu(mover, rows, next);
          } else {
            copy_on_cpu(rows, next, unpack, stream);
          }
          next += rows.shape().elements() * size_bytes(rows.dtype());
        }
      }
    }
    mover.finish();
  });
}

// The rows of a piece, which are one interval in the tokens of the rank and in those of the group:
// [batch, rows, heads of the slice, elements of a row].
TensorView HeadExchange::rows_of(const HeadTensor& tensor, const Slice& slice, const Piece& piece,
                                 bool token_side) const {
  const auto group = static_cast<std::size_t>(first_ / schedule_.group());
  const Rows rows(token_side ? pieces_of_member(slice.tokens) : schedule_.ring().partition().pieces[group],
                  piece);
  const std::int64_t heads = heads_of(tensor);
  const std::int64_t first_head = token_side ? slice.heads * heads : 0;
  const TensorView& view = token_side ? tensor.tokens : tensor.heads;
  if (!tensor.statistics) {
    return view.slice(1, rows.before + rows.first, piece.size()).slice(2, first_head, heads);
  }
  // Of each piece [batch, heads, rows].
  const std::int64_t batch = schedule_.problem().batch;
  const std::int64_t all_heads = token_side ? heads * schedule_.group() : heads;
  const std::int64_t begin = batch * all_heads * rows.before + first_head * rows.size + rows.first;
  return {static_cast<std::byte*>(view.raw()) + begin * size_bytes(view.dtype()),
          view.dtype(),
          {batch, piece.size(), heads, 1},
          std::array{all_heads * rows.size, std::int64_t{1}, rows.size, std::int64_t{1}}};
}

}  // namespace headroom
