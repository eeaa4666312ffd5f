#include "comm/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

#include "headroom/cpu.h"
#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

constexpr std::int64_t kElements = 500'000;  // of a tensor in flight
// Messages of one group, for every pair of ranks.
std::int64_t messages_of_group(int ranks) {
  return ranks <= 4 ? 20 : 2;
}

std::size_t size(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

Stream stream_of(const RankUnderTest& rank) {
  return rank.backend == nullptr ? Stream{} : rank.backend->stream(StreamId::main);
}

// Elements on the host, and where messages are in a device's memory, a copy of them there.
template <class T>
class Values {
 public:
  Values(const RankUnderTest& rank, std::vector<T> host) : rank_(rank), host_(std::move(host)) {
    if (rank_.backend != nullptr) device_ = rank_.backend->reserve(Space::device, bytes_reserved());
    put();
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values() {
    if (device_ == nullptr) return;
    rank_.backend->synchronize();
    rank_.backend->release(Space::device, device_, bytes_reserved());
  }

  [[nodiscard]] std::vector<T>& host() { return host_; }
  [[nodiscard]] std::span<std::byte> bytes() {
    void* data = rank_.backend == nullptr ? static_cast<void*>(host_.data()) : device_;
    return {static_cast<std::byte*>(data), host_.size() * sizeof(T)};
  }
  [[nodiscard]] TensorView view(DType dtype) {
    return {bytes().data(), dtype, {static_cast<std::int64_t>(host_.size())}};
  }
  // What the messages are made of <- host(), and the other way; in the order of the stream.
  void put() {
    if (rank_.backend == nullptr || host_.empty()) return;
    rank_.backend->copy(StreamId::main, device_, host_.data(), std::ssize(bytes()));
    rank_.backend->synchronize();
  }
  std::vector<T>& get() {
    if (rank_.backend == nullptr || host_.empty()) return host_;
    rank_.backend->copy(StreamId::main, host_.data(), device_, std::ssize(bytes()));
    rank_.backend->synchronize();
    return host_;
  }

 private:
  [[nodiscard]] std::int64_t bytes_reserved() const {
    return std::max<std::int64_t>(static_cast<std::int64_t>(host_.size() * sizeof(T)), 16);
  }

  RankUnderTest rank_;
  std::vector<T> host_;
  void* device_ = nullptr;
};

// The n-th message from a rank to another: none, a few, or many bytes, and one of more than three pieces.
std::vector<std::uint8_t> message(int from, int to, std::int64_t number) {
  constexpr std::array<std::int64_t, 7> kSizes = {0, 1, 63, 4096, 70'001, 300'000, 0};
  const bool large = number == 3 && from == 0 && to == 1;
  std::vector<std::uint8_t> bytes(
      size(large ? 3 * 1'048'576 + 5 : kSizes[size(number + from + 2 * to) % kSizes.size()]));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + size(from * 31 + to * 17 + number));
  }
  return bytes;
}

// Groups of messages between all pairs, all under way at once and waited for from the last to the first.
void messages_in_flight(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  const std::int64_t messages = messages_of_group(count);
  using Bytes = Values<std::uint8_t>;
  struct Group {
    std::vector<std::unique_ptr<Bytes>> sent;
    std::vector<std::unique_ptr<Bytes>> received;
    MessageGroup number;
  };
  std::vector<Group> groups(4);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (std::int64_t n = 0; n < messages; ++n) {
      for (int peer = 0; peer < count; ++peer) {
        if (peer == rank) continue;
        const std::int64_t number = static_cast<std::int64_t>(g) * messages + n;
        group.sent.push_back(std::make_unique<Bytes>(under_test, message(rank, peer, number)));
        sends.push_back({peer, group.sent.back()->bytes()});
        group.received.push_back(std::make_unique<Bytes>(
            under_test, std::vector<std::uint8_t>(message(peer, rank, number).size())));
        receives.push_back({peer, group.received.back()->bytes()});
      }
    }
    group.number = communicator.start(sends, receives, {"test group", static_cast<std::int64_t>(g)},
                                      stream_of(under_test));
    communicator.progress();
  }
  for (std::size_t g = groups.size(); g-- > 0;) {
    communicator.wait(groups[g].number);
    communicator.wait(groups[g].number);  // again is nothing
    std::size_t next = 0;
    for (std::int64_t n = 0; n < messages; ++n) {
      for (int peer = 0; peer < count; ++peer) {
        if (peer == rank) continue;
        const std::int64_t number = static_cast<std::int64_t>(g) * messages + n;
        EXPECT_TRUE(groups[g].received[next++]->get() == message(peer, rank, number))
            << "message " << number << " from rank " << peer << " to rank " << rank;
      }
    }
  }
}

// Round the ring with one message in flight while the next is started.
void ring(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  if (count == 1) return;
  Values<std::int64_t> first(under_test, std::vector<std::int64_t>(50'000, rank));
  Values<std::int64_t> second(under_test, std::vector<std::int64_t>(50'000));
  Values<std::int64_t>* here = &first;
  Values<std::int64_t>* there = &second;
  const Traffic before = communicator.traffic();
  for (int step = 0; step < 2 * count; ++step) {
    const std::array sends = {Send{(rank + 1) % count, here->bytes()}};
    const std::array receives = {Receive{(rank + count - 1) % count, there->bytes()}};
    const MessageGroup group =
        communicator.start(sends, receives, {"ring step", step}, stream_of(under_test));
    for (int polls = 0; polls < 5; ++polls) communicator.progress();
    communicator.wait(group);
    std::swap(here, there);
    const std::int64_t wanted = (rank + 2 * count - 1 - step) % count;
    EXPECT_EQ(std::ranges::count(here->get(), wanted), std::ssize(here->host()));
  }
  const std::int64_t moved = 2 * count * std::int64_t{400'000};
  EXPECT_EQ(communicator.traffic().sent_bytes - before.sent_bytes, moved);
  EXPECT_EQ(communicator.traffic().received_bytes - before.received_bytes, moved);
}

template <class T>
constexpr DType kTypeOf = DType::f32;
template <>
constexpr DType kTypeOf<double> = DType::f64;
template <>
constexpr DType kTypeOf<BFloat16> = DType::bf16;

template <class T>
T element(int rank, std::int64_t i) {
  return T(static_cast<float>(rank + i % 7));
}

template <class T>
void sums_of_type(const RankUnderTest& under_test, std::int64_t elements) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  Values<T> tensor(under_test, std::vector<T>(size(elements)));
  std::vector<T>& values = tensor.host();
  const auto fill = [&] {
    for (std::int64_t i = 0; i < elements; ++i) values[size(i)] = element<T>(rank, i);
    tensor.put();
  };
  const auto sum = [&, ranks = count](std::int64_t i) {
    return static_cast<float>(ranks * (ranks - 1) / 2) +
           static_cast<float>(ranks) * static_cast<float>(i % 7);
  };
  const TensorView view = tensor.view(kTypeOf<T>);
  const Stream stream = stream_of(under_test);
  Values<std::byte> workspace(under_test,
                              std::vector<std::byte>(size(reduction_workspace_bytes(count, view.bytes()))));
  std::int64_t wrong = 0;

  fill();
  const Traffic before = communicator.traffic();
  communicator.all_reduce(view, workspace.bytes(), stream);
  tensor.get();
  for (std::int64_t i = 0; i < elements; ++i) wrong += static_cast<float>(values[size(i)]) != sum(i);
  EXPECT_EQ(wrong, 0) << elements << " elements of " << name(kTypeOf<T>);
  const Traffic traffic = all_reduce_traffic(communicator.ranks(), view.bytes());
  EXPECT_EQ(communicator.traffic().sent_bytes - before.sent_bytes, traffic.sent_bytes);
  EXPECT_EQ(communicator.traffic().received_bytes - before.received_bytes, traffic.received_bytes);

  // Uneven slices; the first rank's is empty where there are several.
  std::vector<std::int64_t> counts(size(count));
  std::int64_t rest = elements;
  for (int r = 1; r < count; ++r) rest -= counts[size(r)] = elements * r / (count * count);
  counts.back() += rest;
  fill();
  communicator.reduce_scatter(view, counts, workspace.bytes(), stream);
  tensor.get();
  const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  for (std::int64_t i = 0; i < elements; ++i) {
    const bool own = i >= begin && i < begin + counts[size(rank)];
    const float wanted = own ? sum(i) : static_cast<float>(element<T>(rank, i));
    wrong += static_cast<float>(values[size(i)]) != wanted;
  }
  EXPECT_EQ(wrong, 0) << "reduce-scatter of " << elements << " elements of " << name(kTypeOf<T>);
  communicator.all_gather(view, counts, stream);
  tensor.get();
  for (std::int64_t i = 0; i < elements; ++i) wrong += static_cast<float>(values[size(i)]) != sum(i);
  EXPECT_EQ(wrong, 0) << "all-gather of " << elements << " elements of " << name(kTypeOf<T>);
}

void sums(const RankUnderTest& rank) {
  for (const std::int64_t elements : {0, 1, 5, 1000, 400'003}) {
    sums_of_type<float>(rank, elements);
    sums_of_type<double>(rank, elements);
    sums_of_type<BFloat16>(rank, elements);
  }
}

// Added from the left, a large term swallows the 1 that comes after it and not the one that comes last.
void order_of_sums(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  if (count < 3) return;
  const double term = rank == 0 ? 1e16 : rank == 1 ? 1 : rank == 2 ? -1e16 : rank == 3 ? 1 : 0;
  const double wanted = count == 3 ? 0 : 1;
  EXPECT_EQ(communicator.all_reduce(term), wanted);
  Values<double> values(under_test, std::vector<double>(100, term));
  Values<std::byte> workspace(under_test,
                              std::vector<std::byte>(size(reduction_workspace_bytes(count, 800))));
  communicator.all_reduce(values.view(DType::f64), workspace.bytes(), stream_of(under_test));
  EXPECT_THAT(values.get(), testing::Each(wanted));
}

// Rank a has a * b + b % 2 elements for rank b.
void uneven_all_to_all(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  const auto elements = [](int from, int to) { return std::int64_t{from} * to * 1000 + to % 2; };
  std::vector<std::int64_t> to_counts;
  std::vector<std::int64_t> from_counts;
  std::vector<float> from;
  std::vector<float> wanted;
  for (int peer = 0; peer < count; ++peer) {
    to_counts.push_back(elements(peer, rank));
    from_counts.push_back(elements(rank, peer));
    from.insert(from.end(), size(from_counts.back()), static_cast<float>(100 * rank + peer));
    wanted.insert(wanted.end(), size(to_counts.back()), static_cast<float>(100 * peer + rank));
  }
  Values<float> to(under_test, std::vector<float>(wanted.size()));
  Values<float> sent(under_test, from);
  communicator.all_to_all(to.view(DType::f32), to_counts, sent.view(DType::f32), from_counts,
                          stream_of(under_test));
  EXPECT_TRUE(to.get() == wanted);
}

void broadcasts(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  for (int root = 0; root < count; ++root) {
    Values<float> values(under_test, std::vector<float>(1001, static_cast<float>(rank)));
    communicator.broadcast(values.view(DType::f32), root, stream_of(under_test));
    EXPECT_THAT(values.get(), testing::Each(static_cast<float>(root)));
  }
}

void values_of_all(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  for (std::uint64_t call = 0; call < 50; ++call) {
    const auto values = communicator.all_values(call * 1000 + size(rank));
    ASSERT_EQ(values.size(), size(count));
    for (std::size_t r = 0; r < values.size(); ++r) EXPECT_EQ(values[r], call * 1000 + r);
    communicator.barrier();
  }
  EXPECT_EQ(communicator.all_reduce(static_cast<double>(1 << rank)), (1 << count) - 1);
  communicator.check_same(7, "plan");
  if (count < 3) return;
  try {
    communicator.check_same(rank == 2 ? 8 : 7, "plan");
    ADD_FAILURE() << "rank 2 has another plan";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 2 has another plan than rank 0: 0000000000000008, not 0000000000000007");
  }
}

// A message larger than what one poll moves goes along with a kernel: nothing is left to wait for.
void context_overlaps(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const Ranks ranks = communicator.ranks();
  if (ranks.count == 1) return;
  const auto program = [](Context& context) {
    const auto [rank, count] = context.ranks();
    context.phase(Phase::step, [&] {
      Tensor here = context.allocate({.name = "here", .shape = {kElements}});
      Tensor there = context.allocate({.name = "there", .shape = {kElements}});
      fill(context, here, static_cast<float>(rank));
      for (int step = 0; step < count; ++step) {
        const std::array sends = {Parcel{(rank + 1) % count, {here, 0, kElements}}};
        const std::array receives = {Parcel{(rank + count - 1) % count, {there, 0, kElements}}};
        const Ticket arrived = context.exchange(sends, receives, {"ring step", step});
        // On a CPU the work items of a kernel move the messages.
        context.run([&](const Stream& stream) { parallel_for(stream, 100, [](std::int64_t) {}); });
        context.wait(StreamId::main, arrived);
        std::swap(here, there);
      }
      std::vector<float> values(size(kElements), static_cast<float>(rank));  // all the way round
      context.download(std::as_writable_bytes(std::span(values)), here);
      EXPECT_EQ(std::ranges::count(values, static_cast<float>(rank)), kElements);
      context.all_reduce(here);
    });
  };
  CpuBackend cpu(1);
  Backend& backend = under_test.backend == nullptr ? cpu : *under_test.backend;
  Context rehearsal(backend.description(), ranks);
  program(rehearsal);
  Traffic planned;
  for (const WorkRecord& record : rehearsal.work(Phase::step)) {
    planned.sent_bytes += record.work.sent_bytes;
    planned.received_bytes += record.work.received_bytes;
  }
  const Layout layout = make_layout(std::move(rehearsal).take_ledger());
  Context context(backend, layout, &communicator);
  const Traffic before = communicator.traffic();
  program(context);
  EXPECT_EQ(communicator.traffic().sent_bytes - before.sent_bytes, planned.sent_bytes);
  EXPECT_EQ(communicator.traffic().received_bytes - before.received_bytes, planned.received_bytes);
}

// A reduce-scatter in two halves, with another one between them: both have the same bits. The elements are no
// integers, so that sums in another order have other bits. Slices are uneven, and the first is empty.
template <class T>
void sum_in_flight(const RankUnderTest& under_test, std::int64_t elements) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  std::vector<std::int64_t> counts(size(count));
  for (int r = 1; r < count; ++r) counts[size(r)] = elements / count + 3 * r;
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const auto given = [](int of, std::int64_t i) {
    return T(static_cast<float>((i * 7919 + of * 104'729) % 1009) / (1 + static_cast<float>(of * i % 13)));
  };
  std::vector<T> values(size(all));
  for (std::int64_t i = 0; i < all; ++i) values[size(i)] = given(rank, i);
  std::vector<T> at_once(values.size());
  std::vector<T> in_halves(values.size());
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Allocation allocation{.name = "values", .dtype = kTypeOf<T>, .shape = {all}};
      const Tensor first = context.allocate(allocation);
      const Tensor second = context.allocate(allocation);
      for (const Tensor* tensor : {&first, &second}) {
        context.upload(*tensor, std::as_bytes(std::span(values)));
      }
      SumInFlight sum = context.start_reduce_scatter(first, counts);
      context.reduce_scatter(second, counts);
      context.finish_reduce_scatter(first, counts, std::move(sum));
      context.download(std::as_writable_bytes(std::span(in_halves)), first);
      context.download(std::as_writable_bytes(std::span(at_once)), second);
    });
  };
  CpuBackend cpu(1);
  Backend& backend = under_test.backend == nullptr ? cpu : *under_test.backend;
  Context rehearsal(backend.description(), communicator.ranks());
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()), &communicator);
  program(context);
  const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    Sum sum = 0;
    for (int r = 0; r < count; ++r) sum += static_cast<Sum>(given(r, i));
    const bool own = i >= begin && i < begin + counts[size(rank)];
    const T wanted = own ? T(sum) : values[size(i)];
    for (const std::vector<T>* found : {&at_once, &in_halves}) {
      wrong += std::memcmp(&(*found)[size(i)], &wanted, sizeof(T)) != 0;
    }
  }
  EXPECT_EQ(wrong, 0) << all << " elements of " << name(kTypeOf<T>);
}

void sums_in_flight(const RankUnderTest& rank) {
  for (const std::int64_t elements : {5, 200'003}) {
    sum_in_flight<float>(rank, elements);
    sum_in_flight<double>(rank, elements);
    sum_in_flight<BFloat16>(rank, elements);
  }
}

// Rank 0 sends rank 1 one byte more than rank 1 receives; whoever else there is waits for rank 1.
void wrong_size(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  Values<float> values(under_test, std::vector<float>(16));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (rank == 0) sends.push_back({1, values.bytes().first(13)});
  if (rank == 1) receives.push_back({0, values.bytes().first(12)});
  communicator.wait(communicator.start(sends, receives, {"ring step", 3}, stream_of(under_test)));
  communicator.barrier();
}

// The last rank fails while the others wait for it.
void failing_rank(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  if (rank == count - 1) communicator.abort("the last rank is gone");
  communicator.barrier();
}

// A reason that is longer than what one note holds.
std::string long_reason() {
  std::string text = "the last rank is gone, because";
  for (int i = 0; i < 100; ++i) text += fmt::format(" {}", i * i);
  return text;
}
void failing_at_length(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  if (rank == count - 1) communicator.abort(long_reason());
  communicator.barrier();
}

void wrong_peer(const RankUnderTest& under_test) {
  Communicator& communicator = under_test.communicator;
  const auto [rank, count] = communicator.ranks();
  for (const int peer : {-1, rank, count}) {
    const std::array sends = {Send{peer, {}}};
    EXPECT_THROW(communicator.start(sends, {}, {"test"}, {}), Error);
  }
}

}  // namespace

std::vector<ConformanceCase> conformance_cases() {
  return {{"MessagesInFlight", messages_in_flight},
          {"Ring", ring},
          {"Sums", sums},
          {"OrderOfSums", order_of_sums},
          {"UnevenAllToAll", uneven_all_to_all},
          {"Broadcasts", broadcasts},
          {"ValuesOfAll", values_of_all},
          {"ContextOverlaps", context_overlaps},
          {"SumsInFlight", sums_in_flight},
          {"WrongPeer", wrong_peer}};
}

std::vector<FaultCase> fault_cases() {
  return {{"WrongSize", "rank 0 sends 13 bytes in ring step 3, rank 1 receives 12 bytes in ring step 3",
           wrong_size},
          {"FailingRank", "the last rank is gone", failing_rank},
          {"LongReason", long_reason(), failing_at_length}};
}

}  // namespace headroom
