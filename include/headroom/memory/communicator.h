// The interface between a Context and the other ranks that work on a step. There is one implementation per
// transport (headroom/comm.h), which moves messages; sums and gathers are made of messages here, in the order
// of the ranks, so that every rank has the same bits. A rehearsal has no communicator: it records what would
// be sent. Every rank makes the same calls in the same order, on one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

// A rank and the number of ranks. By default there is one rank.
struct Ranks {
  int rank = 0;
  int count = 1;

  bool operator==(const Ranks&) const = default;
};
// Throws unless 0 <= rank < count.
void validate(const Ranks& ranks);

// Which step of a program messages belong to, for error messages: "ring step 3". The name is a literal.
struct StepLabel {
  std::string_view name;
  std::int64_t number = -1;  // none where it is negative

  [[nodiscard]] std::string text() const;
};

// A message to or from another rank. The bytes are in the device's memory.
struct Send {
  int to = 0;
  std::span<const std::byte> bytes;
};
struct Receive {
  int from = 0;
  std::span<std::byte> bytes;
};

// Messages that were started together and are waited for together.
struct MessageGroup {
  std::uint64_t number = 0;
};

// What a rank has sent to others and received from them.
struct Traffic {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;

  bool operator==(const Traffic&) const = default;
};

using Seconds = std::chrono::duration<double>;
// Long enough for a rank that computes between two exchanges while another waits for it.
inline constexpr Seconds kDefaultTimeout{300};

// What a rank's calls throw when another rank has ended the run. The text is the reason that the other gave.
struct OtherRankFailed : Error {
  using Error::Error;
};

class Communicator {
 public:
  explicit Communicator(Seconds timeout = kDefaultTimeout) : timeout_(timeout) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual Ranks ranks() const = 0;

  // Starts sends and receives and returns at once. Several groups may be under way. The n-th message that
  // rank a sends to rank b is the n-th that b receives from a. The messages come after the stream's work so
  // far. Until the group was waited for, sent bytes may be read but not written, and received bytes neither.
  MessageGroup start(std::span<const Send> sends, std::span<const Receive> receives, const StepLabel& step,
                     const Stream& stream);
  // Returns when the group's messages are there, in the order of the stream that it was started with. Throws
  // an error of kind runtime where another rank has failed or sends another number of bytes than is received
  // here, or where no byte has moved for the timeout. Every rank then ends with the same line.
  void wait(MessageGroup group);
  // Moves messages that are under way. It is cheap and never waits: kernels call it between work items.
  virtual void progress() = 0;
  // Ends every call of every rank, those under way and those to come, with an error of kind runtime that
  // gives the reason. A rank that fails calls this, so that the others do not wait for it. When it returns,
  // no message reads or writes this rank's memory.
  virtual void abort(std::string_view reason) noexcept = 0;

  // values <- their sum over all ranks, element by element, added in the order of the ranks. The values are
  // f32, f64 or bf16 (added in f32 and rounded once), and dense.
  void all_reduce(const TensorView& values, std::span<std::byte> workspace, const Stream& stream,
                  const StepLabel& step = {"all-reduce"});
  // The values are slices of counts[rank] elements, one after another. This rank's slice <- its sum over all
  // ranks, as all_reduce adds; the other slices stay as they are.
  void reduce_scatter(const TensorView& values, std::span<const std::int64_t> counts,
                      std::span<std::byte> workspace, const Stream& stream,
                      const StepLabel& step = {"reduce-scatter"});
  // The adding of a reduce_scatter whose messages were started apart: own <- the parts of all ranks, added in
  // their order. Those of the others follow each other in `others`, each as large as this rank's own.
  void add_parts(const TensorView& own, std::span<const std::byte> others, const Stream& stream);
  // Slices as above. Each slice <- that of its rank.
  void all_gather(const TensorView& values, std::span<const std::int64_t> counts, const Stream& stream,
                  const StepLabel& step = {"all-gather"});
  // Sends slice r of `from` to rank r and receives slice r of `to` from rank r; this rank's own slice is
  // copied. Slices may be of any size, also empty; from_counts[r] here is to_counts[this rank] there.
  void all_to_all(const TensorView& to, std::span<const std::int64_t> to_counts, const TensorView& from,
                  std::span<const std::int64_t> from_counts, const Stream& stream,
                  const StepLabel& step = {"all-to-all"});
  // values <- those of the root.
  void broadcast(const TensorView& values, int root, const Stream& stream,
                 const StepLabel& step = {"broadcast"});

  // Returns the value that each rank has given, by rank, until the next call. Waits for every rank.
  std::span<const std::uint64_t> all_values(std::uint64_t value, const StepLabel& step = {"all-values"});
  // Returns the sum over all ranks of one number on the host, added in the order of the ranks.
  [[nodiscard]] double all_reduce(double value);
  // Returns when every rank has called it.
  void barrier() { all_values(0, {"barrier"}); }
  // Returns a rank whose value differs from that of most, and a rank with that of most, the same two on every
  // rank; nothing where all values are the same.
  struct Difference {
    int rank = 0;
    int usual = 0;
  };
  [[nodiscard]] std::optional<Difference> difference(std::uint64_t value);
  // Throws on every rank unless all of them give the same value, naming a rank that differs from most. Ranks
  // compare hash(layout) with it before they reserve memory.
  void check_same(std::uint64_t value, std::string_view what);
  // Throws an error that every rank has found, and that every rank throws: on `teller` as its own, on the
  // others as OtherRankFailed. So programs print it once.
  [[noreturn]] void fail_on_all(int teller, const std::string& text) const;

  // What was started so far, and the time that wait() has taken.
  [[nodiscard]] const Traffic& traffic() const { return traffic_; }
  [[nodiscard]] Seconds waited() const { return waited_; }
  [[nodiscard]] Seconds timeout() const { return timeout_; }

 protected:
  struct State {
    bool done = true;
    int peer = 0;           // that a message is missing from or to
    StepLabel step;         // of that message
    std::int64_t left = 0;  // messages and bytes that have not moved yet
  };

 private:
  [[nodiscard]] virtual MessageGroup post(std::span<const Send> sends, std::span<const Receive> receives,
                                          const StepLabel& step, const Stream& stream) = 0;
  [[nodiscard]] virtual State state(MessageGroup group) = 0;
  // Makes progress with every message as far as it goes. Where there is none, sleeps until something may have
  // changed, and never beyond the deadline by much.
  virtual void progress_or_sleep(std::chrono::steady_clock::time_point deadline) = 0;
  // Called before wait() returns. A transport whose messages move on streams of a device makes the group's
  // stream wait for them here.
  virtual void settle(MessageGroup) {}
  // What the host does with memory that it reaches, for a device's memory and in the order of the stream:
  // own <- the parts of all ranks, added in their order, of which those of the others follow each other; and
  // a copy.
  virtual void add_on_device(DType dtype, std::span<std::byte> own, const std::byte* others,
                             const Stream& stream);
  virtual void copy_on_device(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream);
  // The rank that `peer` itself waits for at last, where that is known.
  [[nodiscard]] virtual int blocked_by(int peer) const { return peer; }

  void add_parts(DType dtype, std::span<std::byte> own, const std::byte* others, const Stream& stream);
  struct Slice {
    std::int64_t begin = 0;  // bytes
    std::int64_t bytes = 0;
  };
  template <class SliceOf>
  void reduce(const TensorView& values, std::int64_t rounds, const SliceOf& slice_of, bool gather,
              std::span<std::byte> workspace, const Stream& stream, const StepLabel& step);

  Seconds timeout_;
  Seconds waited_{};
  Traffic traffic_;
  std::vector<Send> sends_;  // of the call under way
  std::vector<Receive> receives_;
  std::vector<std::uint64_t> values_;  // [rank]
};

// The workspace of an all_reduce or reduce_scatter of values of so many bytes.
[[nodiscard]] std::int64_t reduction_workspace_bytes(int ranks, std::int64_t bytes);
// What a rank sends and receives in an all_reduce of so many bytes, or in a reduce_scatter of which so many
// are its own.
[[nodiscard]] Traffic all_reduce_traffic(const Ranks& ranks, std::int64_t bytes);
[[nodiscard]] Traffic reduce_scatter_traffic(const Ranks& ranks, std::int64_t bytes, std::int64_t own_bytes);

}  // namespace headroom
