#include "headroom/comm/thread_ranks.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headroom/core/error.h"

namespace headroom {
namespace {

// Every rank's values <- their sum.
template <class T, class Sum = T>
void add_up(std::span<const TensorView> of_ranks) {
  for (std::int64_t i = 0; i < of_ranks.front().elements(); ++i) {
    Sum sum = 0;
    for (const TensorView& values : of_ranks) sum += static_cast<Sum>(values.data<T>()[i]);
    for (const TensorView& values : of_ranks) values.data<T>()[i] = static_cast<T>(sum);
  }
}

void add_up(std::span<const TensorView> of_ranks) {
  switch (of_ranks.front().dtype()) {
    case DType::f64: return add_up<double>(of_ranks);
    case DType::bf16: return add_up<BFloat16, float>(of_ranks);
    default: return add_up<float>(of_ranks);
  }
}

}  // namespace

// In every call the ranks meet; the last to arrive does the work for all, while the others wait.
struct ThreadRanks::Group {
  class Member final : public Communicator {
   public:
    Member(Group& group, Ranks ranks) : group_(group), ranks_(ranks) {}

    [[nodiscard]] Ranks ranks() const override { return ranks_; }

    // The stream is the calling thread's.
    void all_reduce(const TensorView& values, const Stream& stream) override {
      if (stream.device != nullptr) {
        check(stream.device->host_accessible(),
              "ranks that are threads read each other's memory, which {} does not let them",
              stream.device->name);
      }
      const DType dtype = values.dtype();
      check(values.is_dense() && (dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16),
            "ranks add up dense f32, f64 or bf16, not {} of shape {}", name(dtype), values.shape());
      group_.add_up(ranks_.rank, values);
    }
    [[nodiscard]] double all_reduce(double value) override {
      group_.add_up(ranks_.rank, TensorView(&value, DType::f64, {1}));
      return value;
    }
    void abort(std::string_view reason) noexcept override { group_.abort(reason); }

   private:
    Group& group_;
    Ranks ranks_;
  };

  explicit Group(int count) : of_ranks(static_cast<std::size_t>(count)) {
    for (int rank = 0; rank < count; ++rank) {
      members.push_back(std::make_unique<Member>(*this, Ranks{rank, count}));
    }
  }

  void add_up(int rank, const TensorView& mine) {
    of_ranks[static_cast<std::size_t>(rank)] = mine;
    meet([&] {
      for (const TensorView& other : of_ranks) {
        check(other.shape() == mine.shape() && other.dtype() == mine.dtype(),
              "ranks add up values of different sizes: {} of {} and {} of {}", name(mine.dtype()),
              mine.shape(), name(other.dtype()), other.shape());
      }
      headroom::add_up(of_ranks);
    });
  }

  // Until every rank is here; the last one calls body first. An error of one is an error of all.
  template <class Body>
  void meet(const Body& body) {
    std::unique_lock lock(mutex);
    throw_if_aborted();
    if (++arrived < members.size()) {
      const std::int64_t meeting = meetings;
      everybody.wait(lock, [&] { return meetings != meeting || failure; });
      throw_if_aborted();
      return;
    }
    try {
      body();
    } catch (const Error& error) {
      failure = error.what();
    }
    arrived = 0;
    ++meetings;
    everybody.notify_all();
    throw_if_aborted();
  }

  void throw_if_aborted() const {
    if (failure) fail(ErrorKind::runtime, "{}", *failure);
  }

  void abort(std::string_view why) noexcept {
    const std::lock_guard lock(mutex);
    if (!failure) failure.emplace(why);
    everybody.notify_all();
  }

  std::vector<std::unique_ptr<Member>> members;
  std::vector<TensorView> of_ranks;  // [rank], of the call under way
  std::mutex mutex;
  std::condition_variable everybody;
  std::size_t arrived = 0;
  std::int64_t meetings = 0;
  std::optional<std::string> failure;  // why everything ends
};

ThreadRanks::ThreadRanks(int count) {
  check(count >= 1, "{} ranks are impossible; at least 1 is accepted", count);
  group_ = std::make_unique<Group>(count);
}

ThreadRanks::~ThreadRanks() = default;

Communicator& ThreadRanks::communicator(int rank) {
  check(rank >= 0 && rank < static_cast<int>(group_->members.size()), "there is no rank {} of {}", rank,
        group_->members.size());
  return *group_->members[static_cast<std::size_t>(rank)];
}

}  // namespace headroom
