#include "headroom/memory/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;

// Of one rank in one round of a reduction: the parts of 8 ranks stay in a second-level cache of 2 MiB.
constexpr std::int64_t kSliceBytes = 128 * kKiB;
// Slices begin at multiples of this, so that they never cut an element.
constexpr std::int64_t kLargestElement = 8;

std::int64_t all_reduce_rounds(int ranks, std::int64_t bytes) {
  return divide_up(bytes, ranks * kSliceBytes);
}
// Rounds are of the largest slices; the last one is divided evenly.
std::int64_t all_reduce_slice_bytes(int ranks, std::int64_t bytes, std::int64_t round) {
  const std::int64_t left = bytes - round * ranks * kSliceBytes;
  return std::min(kSliceBytes, round_up(divide_up(left, ranks), kLargestElement));
}

// own <- the parts of all ranks, added in their order. Those of the others begin part_bytes apart.
template <class T, class Sum = T>
void add_in_order(const Ranks& ranks, std::span<std::byte> own, const std::byte* others,
                  std::size_t part_bytes) {
  constexpr std::size_t kTile = 256;
  const std::size_t elements = own.size() / sizeof(T);
  const std::size_t part_elements = part_bytes / sizeof(T);
  T* mine = reinterpret_cast<T*>(own.data());
  const T* parts = reinterpret_cast<const T*>(others);
  for (std::size_t begin = 0; begin < elements; begin += kTile) {
    const std::size_t tile = std::min(kTile, elements - begin);
    Sum sums[kTile] = {};
    for (int rank = 0; rank < ranks.count; ++rank) {
      const auto before = static_cast<std::size_t>(rank < ranks.rank ? rank : rank - 1);
      const T* part = (rank == ranks.rank ? mine : parts + before * part_elements) + begin;
      for (std::size_t i = 0; i < tile; ++i) sums[i] += static_cast<Sum>(part[i]);
    }
    for (std::size_t i = 0; i < tile; ++i) mine[begin + i] = static_cast<T>(sums[i]);
  }
}

void add_in_order(DType dtype, const Ranks& ranks, std::span<std::byte> own, const std::byte* others,
                  std::size_t part_bytes) {
  switch (dtype) {
    case DType::f64: return add_in_order<double>(ranks, own, others, part_bytes);
    case DType::bf16: return add_in_order<BFloat16, float>(ranks, own, others, part_bytes);
    default: return add_in_order<float>(ranks, own, others, part_bytes);
  }
}

std::span<std::byte> bytes_of(const TensorView& values) {
  check(values.is_dense(), "ranks send dense values, not {} of shape {} with gaps", name(values.dtype()),
        values.shape());
  return {static_cast<std::byte*>(values.raw()), static_cast<std::size_t>(values.bytes())};
}

std::span<std::byte> part(std::span<std::byte> bytes, std::int64_t begin, std::int64_t size) {
  return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
}

void check_summable(const TensorView& values) {
  const DType dtype = values.dtype();
  check(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16,
        "ranks add up f32, f64 or bf16, not {}", name(dtype));
}

bool host_reaches(const Stream& stream) {
  return stream.device == nullptr || stream.device->host_accessible();
}

void check_counts(const TensorView& values, std::span<const std::int64_t> counts, const Ranks& ranks) {
  const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  check(std::ssize(counts) == ranks.count && elements == values.elements(),
        "{} slices with {} elements in all are given for {} ranks and {} elements", counts.size(), elements,
        ranks.count, values.elements());
  check(std::ranges::all_of(counts, [](std::int64_t count) { return count >= 0; }),
        "a slice has less than 0 elements");
}

}  // namespace

void validate(const Ranks& ranks) {
  check(ranks.count >= 1 && ranks.rank >= 0 && ranks.rank < ranks.count, "there is no rank {} of {}",
        ranks.rank, ranks.count);
}

std::string StepLabel::text() const {
  return number < 0 ? std::string(name) : fmt::format("{} {}", name, number);
}

MessageGroup Communicator::start(std::span<const Send> sends, std::span<const Receive> receives,
                                 const StepLabel& step, const Stream& stream) {
  const Ranks all = ranks();
  const auto check_peer = [&](int peer) {
    check(peer >= 0 && peer < all.count && peer != all.rank,
          "rank {} exchanges messages with rank {}; accepted are the other ranks of {}", all.rank, peer,
          all.count);
  };
  for (const Send& send : sends) check_peer(send.to);
  for (const Receive& receive : receives) check_peer(receive.from);
  const MessageGroup group = post(sends, receives, step, stream);
  for (const Send& send : sends) traffic_.sent_bytes += std::ssize(send.bytes);
  for (const Receive& receive : receives) traffic_.received_bytes += std::ssize(receive.bytes);
  return group;
}

void Communicator::wait(MessageGroup group) {
  State now = state(group);
  if (now.done) return settle(group);
  const Clock::time_point began = Clock::now();
  Clock::time_point last_moved = began;
  const auto timeout = std::chrono::duration_cast<Clock::duration>(timeout_);
  while (!now.done) {
    if (Clock::now() - last_moved >= timeout) {
      // This rank may itself have been stopped, and the others may have ended the run meanwhile.
      progress_or_sleep(Clock::now());
      const int blocker = blocked_by(now.peer);
      const std::string reason =
          blocker == ranks().rank
              ? fmt::format("rank {} waited {:g} s in {} for rank {}, which waits for rank {} itself",
                            ranks().rank, timeout_.count(), now.step.text(), now.peer, ranks().rank)
              : fmt::format("rank {} waited {:g} s in {} for rank {}, which did not answer", ranks().rank,
                            timeout_.count(), now.step.text(), blocker);
      abort(reason);  // where several ranks time out, the next call throws what the first has said
    }
    progress_or_sleep(last_moved + timeout);
    const State next = state(group);
    if (next.left != now.left) last_moved = Clock::now();
    now = next;
  }
  waited_ += Clock::now() - began;
  settle(group);
}

void Communicator::add_parts(const TensorView& own, std::span<const std::byte> others, const Stream& stream) {
  check_summable(own);
  const std::int64_t wanted = (ranks().count - 1) * own.bytes();
  check(std::ssize(others) == wanted, "the parts of {} other ranks have {} bytes, not {}", ranks().count - 1,
        wanted, others.size());
  add_parts(own.dtype(), bytes_of(own), others.data(), stream);
}

void Communicator::add_parts(DType dtype, std::span<std::byte> own, const std::byte* others,
                             const Stream& stream) {
  if (own.empty()) return;
  if (!host_reaches(stream)) return add_on_device(dtype, own, others, stream);
  // The thread that adds is the one that moves messages.
  for (std::int64_t begin = 0; begin < std::ssize(own); begin += kSliceBytes) {
    add_in_order(dtype, ranks(), part(own, begin, std::min(kSliceBytes, std::ssize(own) - begin)),
                 others + begin, own.size());
    progress();
  }
}

void Communicator::add_on_device(DType, std::span<std::byte>, const std::byte*, const Stream& stream) {
  fail(ErrorKind::input, "these ranks do not add up in the memory of {}", stream.device->name);
}

void Communicator::copy_on_device(std::span<std::byte>, std::span<const std::byte>, const Stream& stream) {
  fail(ErrorKind::input, "these ranks do not copy in the memory of {}", stream.device->name);
}

// In every round each rank sends a slice to every other and adds up its own; with `gather` it sends the sum
// back. While a round is added up, the slices of the next one are under way.
template <class SliceOf>
void Communicator::reduce(const TensorView& values, std::int64_t rounds, const SliceOf& slice_of, bool gather,
                          std::span<std::byte> workspace, const Stream& stream, const StepLabel& step) {
  const Ranks all = ranks();
  const std::span<std::byte> bytes = bytes_of(values);
  const std::int64_t wanted = reduction_workspace_bytes(all.count, values.bytes());
  check(std::ssize(workspace) >= wanted, "a sum over ranks needs {} bytes of workspace and has {}", wanted,
        workspace.size());
  const auto slice = [&](std::int64_t round, int rank) {
    const Slice of_rank = slice_of(round, rank);
    return part(bytes, of_rank.begin, of_rank.bytes);
  };
  const auto parts = [&](std::int64_t round) {
    return part(workspace, round % 2 * (wanted / 2), wanted / 2);
  };
  const auto scatter = [&](std::int64_t round) {
    sends_.clear();
    receives_.clear();
    const std::size_t own = slice(round, all.rank).size();
    std::size_t received = 0;
    for (int peer = 0; peer < all.count; ++peer) {
      if (peer == all.rank) continue;
      if (const auto theirs = slice(round, peer); !theirs.empty()) sends_.push_back({peer, theirs});
      if (own > 0) receives_.push_back({peer, parts(round).subspan(received, own)});
      received += own;
    }
    return start(sends_, receives_, step, stream);
  };
  const auto send_sum = [&](std::int64_t round) {
    sends_.clear();
    receives_.clear();
    const std::span<std::byte> own = slice(round, all.rank);
    for (int peer = 0; peer < all.count; ++peer) {
      if (peer == all.rank) continue;
      if (!own.empty()) sends_.push_back({peer, own});
      if (const auto theirs = slice(round, peer); !theirs.empty()) receives_.push_back({peer, theirs});
    }
    return start(sends_, receives_, step, stream);
  };
  if (rounds == 0 || all.count == 1) return;
  MessageGroup scattered = scatter(0);
  MessageGroup gathered;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const MessageGroup this_round = scattered;
    if (round + 1 < rounds) scattered = scatter(round + 1);
    wait(this_round);
    add_parts(values.dtype(), slice(round, all.rank), parts(round).data(), stream);
    if (!gather) continue;
    const MessageGroup last = gathered;
    gathered = send_sum(round);
    if (round > 0) wait(last);
  }
  if (gather) wait(gathered);
}

void Communicator::all_reduce(const TensorView& values, std::span<std::byte> workspace, const Stream& stream,
                              const StepLabel& step) {
  check_summable(values);
  const int count = ranks().count;
  const std::int64_t bytes = values.bytes();
  const auto slice_of = [&](std::int64_t round, int rank) {
    const std::int64_t size = all_reduce_slice_bytes(count, bytes, round);
    const std::int64_t begin = std::min(bytes, round * count * kSliceBytes + rank * size);
    return Slice{begin, std::min(size, bytes - begin)};
  };
  reduce(values, all_reduce_rounds(count, bytes), slice_of, true, workspace, stream, step);
}

void Communicator::reduce_scatter(const TensorView& values, std::span<const std::int64_t> counts,
                                  std::span<std::byte> workspace, const Stream& stream,
                                  const StepLabel& step) {
  check_summable(values);
  check_counts(values, counts, ranks());
  const std::int64_t element = size_bytes(values.dtype());
  const auto slice_of = [&](std::int64_t round, int rank) {
    const auto before = counts.begin() + rank;
    const std::int64_t begin = std::accumulate(counts.begin(), before, std::int64_t{0}) * element;
    const std::int64_t done = std::min(*before * element, round * kSliceBytes);
    return Slice{begin + done, std::min(kSliceBytes, *before * element - done)};
  };
  const std::int64_t rounds = divide_up(std::ranges::max(counts) * element, kSliceBytes);
  reduce(values, rounds, slice_of, false, workspace, stream, step);
}

void Communicator::all_gather(const TensorView& values, std::span<const std::int64_t> counts,
                              const Stream& stream, const StepLabel& step) {
  const Ranks all = ranks();
  check_counts(values, counts, all);
  const std::span<std::byte> bytes = bytes_of(values);
  const std::int64_t element = size_bytes(values.dtype());
  const auto own_begin = std::accumulate(counts.begin(), counts.begin() + all.rank, std::int64_t{0});
  const auto own = part(bytes, own_begin * element, counts[static_cast<std::size_t>(all.rank)] * element);
  sends_.clear();
  receives_.clear();
  std::int64_t begin = 0;
  for (int peer = 0; peer < all.count; ++peer) {
    const std::int64_t size = counts[static_cast<std::size_t>(peer)] * element;
    if (peer != all.rank) {
      sends_.push_back({peer, own});
      receives_.push_back({peer, part(bytes, begin, size)});
    }
    begin += size;
  }
  wait(start(sends_, receives_, step, stream));
}

void Communicator::all_to_all(const TensorView& to, std::span<const std::int64_t> to_counts,
                              const TensorView& from, std::span<const std::int64_t> from_counts,
                              const Stream& stream, const StepLabel& step) {
  const Ranks all = ranks();
  check(to.dtype() == from.dtype(), "all-to-all of {} into {}: both have to be of one type",
        name(from.dtype()), name(to.dtype()));
  check_counts(to, to_counts, all);
  check_counts(from, from_counts, all);
  const std::int64_t element = size_bytes(to.dtype());
  const std::span<std::byte> targets = bytes_of(to);
  const std::span<std::byte> sources = bytes_of(from);
  sends_.clear();
  receives_.clear();
  std::span<std::byte> own_target;
  std::span<const std::byte> own_source;
  std::int64_t to_begin = 0;
  std::int64_t from_begin = 0;
  for (int peer = 0; peer < all.count; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const auto target = part(targets, to_begin, to_counts[p] * element);
    const auto source = part(sources, from_begin, from_counts[p] * element);
    to_begin += std::ssize(target);
    from_begin += std::ssize(source);
    if (peer == all.rank) {
      own_target = target;
      own_source = source;
    } else {
      sends_.push_back({peer, source});
      receives_.push_back({peer, target});
    }
  }
  check(own_target.size() == own_source.size(),
        "rank {} has {} bytes for itself in an all-to-all and takes {} of them", all.rank, own_source.size(),
        own_target.size());
  const MessageGroup group = start(sends_, receives_, step, stream);
  if (host_reaches(stream)) {
    std::ranges::copy(own_source, own_target.begin());
  } else {
    copy_on_device(own_target, own_source, stream);
  }
  wait(group);
}

// A binomial tree: in each round those who have the values send them to as many others.
void Communicator::broadcast(const TensorView& values, int root, const Stream& stream,
                             const StepLabel& step) {
  const Ranks all = ranks();
  check(root >= 0 && root < all.count, "rank {} of {} cannot be the root of a broadcast", root, all.count);
  const std::span<std::byte> bytes = bytes_of(values);
  const int mine = (all.rank - root + all.count) % all.count;  // the root is 0
  for (int have = 1; have < all.count; have *= 2) {
    sends_.clear();
    receives_.clear();
    if (mine < have && mine + have < all.count) sends_.push_back({(all.rank + have) % all.count, bytes});
    if (mine >= have && mine < 2 * have) {
      receives_.push_back({(all.rank - have + all.count) % all.count, bytes});
    }
    wait(start(sends_, receives_, step, stream));
  }
}

std::span<const std::uint64_t> Communicator::all_values(std::uint64_t value, const StepLabel& step) {
  const Ranks all = ranks();
  values_.assign(static_cast<std::size_t>(all.count), value);
  const auto bytes = std::as_writable_bytes(std::span(values_));
  const auto slot = [&](int rank) { return part(bytes, rank * std::int64_t{8}, 8); };
  sends_.clear();
  receives_.clear();
  for (int peer = 0; peer < all.count; ++peer) {
    if (peer == all.rank) continue;
    sends_.push_back({peer, slot(all.rank)});
    receives_.push_back({peer, slot(peer)});
  }
  wait(start(sends_, receives_, step, {}));
  return values_;
}

double Communicator::all_reduce(double value) {
  double sum = 0;
  for (const std::uint64_t bits : all_values(std::bit_cast<std::uint64_t>(value), {"all-reduce"})) {
    sum += std::bit_cast<double>(bits);
  }
  return sum;
}

std::optional<Communicator::Difference> Communicator::difference(std::uint64_t value) {
  const std::span<const std::uint64_t> values = all_values(value, {"comparison"});
  const auto times = [&](std::uint64_t one) { return std::ranges::count(values, one); };
  const auto usual = std::ranges::max_element(values, {}, times);
  const auto other = std::ranges::find_if(values, [&](std::uint64_t one) { return one != *usual; });
  if (other == values.end()) return std::nullopt;
  return Difference{.rank = static_cast<int>(other - values.begin()),
                    .usual = static_cast<int>(usual - values.begin())};
}

void Communicator::check_same(std::uint64_t value, std::string_view what) {
  const std::optional<Difference> found = difference(value);
  if (!found) return;
  fail_on_all(found->rank,
              fmt::format("rank {} has another {} than rank {}: {:016x}, not {:016x}", found->rank, what,
                          found->usual, values_[static_cast<std::size_t>(found->rank)],
                          values_[static_cast<std::size_t>(found->usual)]));
}

void Communicator::fail_on_all(int teller, const std::string& text) const {
  if (ranks().rank != teller) {
    throw OtherRankFailed(ErrorKind::runtime, text, std::source_location::current());
  }
  fail(ErrorKind::runtime, "{}", text);
}

std::int64_t reduction_workspace_bytes(int ranks, std::int64_t bytes) {
  return std::int64_t{2} * (ranks - 1) * std::min(kSliceBytes, round_up(bytes, kLargestElement));
}

Traffic all_reduce_traffic(const Ranks& ranks, std::int64_t bytes) {
  std::int64_t own = 0;
  for (std::int64_t round = 0; round < all_reduce_rounds(ranks.count, bytes); ++round) {
    const std::int64_t size = all_reduce_slice_bytes(ranks.count, bytes, round);
    const std::int64_t begin = round * ranks.count * kSliceBytes + ranks.rank * size;
    own += std::clamp(bytes - begin, std::int64_t{0}, size);
  }
  // Every other slice goes out and comes back as a sum; the own one comes in from all and its sum goes out.
  const std::int64_t both = bytes - own + (ranks.count - 1) * own;
  return {.sent_bytes = both, .received_bytes = both};
}

Traffic reduce_scatter_traffic(const Ranks& ranks, std::int64_t bytes, std::int64_t own_bytes) {
  return {.sent_bytes = bytes - own_bytes, .received_bytes = (ranks.count - 1) * own_bytes};
}

}  // namespace headroom
