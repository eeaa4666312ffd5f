// A Context is everything a step needs, passed explicitly: device, streams, cursor into the layout, ledger.
// Made from a description it is a rehearsal: the same code runs with no storage and no arithmetic, and its
// ledger becomes a Layout. Made from a backend and a Layout it is the run: allocation n of a phase lands at
// offset n, and the first event that differs from the rehearsal fails, naming both sides. One thread owns it;
// its tensors must not outlive it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/memory/arena.h"
#include "headroom/memory/backend.h"
#include "headroom/memory/communicator.h"
#include "headroom/memory/layout.h"
#include "headroom/memory/ledger.h"
#include "headroom/memory/stage.h"
#include "headroom/memory/stream_order.h"
#include "headroom/memory/tensor.h"
#include "headroom/memory/work.h"

namespace headroom {

struct Allocation {
  std::string_view name;
  Category category = Category::workspace;
  DType dtype = DType::f32;
  Shape shape;
  Space space = Space::device;
  Lifetime lifetime = Lifetime::phase;
};

// Elements begin, begin + 1, ... of a dense tensor.
struct TensorPart {
  const Tensor& tensor;
  std::int64_t begin = 0;
  std::int64_t elements = 0;

  [[nodiscard]] TensorView view() const;  // [elements]
};

// A part of a tensor that goes to another rank or comes from one.
struct Parcel {
  int peer = 0;
  TensorPart part;
};

// A moment on a stream that another stream or the host can wait for; valid until its phase ends.
struct Ticket {
  std::uint32_t number = 0;
  std::int64_t phase_run = 0;
};

// A reduce-scatter that was started.
struct SumInFlight {
  Tensor parts;  // of this rank's slice, from the other ranks in their order
  Ticket arrived;
};

// Which messages of an exchange a rehearsal writes down. Of `sampled`, parts of one tensor that follow each
// other are one message: bytes and work are those of all messages, and no run can follow the trace.
enum class NotedMessages : std::uint8_t { all, sampled };

class Context {
 public:
  // A rehearsal on a phantom of the described device, as one of so many ranks.
  explicit Context(DeviceDescription description, const Ranks& ranks = {},
                   NotedMessages noted = NotedMessages::all);
  // A run: reserves what the layout says, once. Without a communicator it is the one rank of one.
  Context(Backend& backend, const Layout& layout, Communicator* communicator = nullptr);
  // A run in memory that a host framework hands over. Each arena has to be at least as large as the layout
  // says.
  Context(Backend& backend, Layout layout, Arena device, Arena host, Communicator* communicator = nullptr);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  // A rank that an error ends takes the others with it.
  ~Context();

  [[nodiscard]] bool phantom() const { return backend_ == nullptr; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const DeviceDescription& description() const { return description_; }
  [[nodiscard]] const Ranks& ranks() const { return ranks_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  // The rehearsal's ledger, for make_layout.
  [[nodiscard]] Ledger take_ledger() && { return std::move(ledger_); }

  // Runs body() as a phase: the cursor rewinds, and every block of the phase has to be freed by its
  // end. A phase that an exception leaves is undone, so that another phase (saving, say) can still run.
  template <class Body>
  void phase(Phase phase, Body&& body) {
    begin_phase(phase);
    try {
      body();
    } catch (...) {
      abandon_phase();
      throw;
    }
    end_phase();
  }

  // A stage lasts as long as what this returns; stages nest: forward/layer 3/attention.
  class [[nodiscard]] OpenStage {
   public:
    explicit OpenStage(Context& context) : context_(context) {}
    OpenStage(const OpenStage&) = delete;
    OpenStage& operator=(const OpenStage&) = delete;
    ~OpenStage() { context_.end_stage(); }

   private:
    Context& context_;
  };
  OpenStage stage(StageKind kind, std::int64_t index = -1);

  [[nodiscard]] Tensor allocate(const Allocation& allocation);

  // Runs body(const Stream&) on main, whose work is in order with every allocation and free. A phantom
  // records the work and does not call the body. Work that is assumed is refused unless this is a phantom.
  template <class Body>
  void run(const Work& work, Body&& body) {
    note_work(work);
    if (phantom()) return;
    const TimedWork timed(*this);
    body(backend_->stream(StreamId::main));
  }
  // Runs body(Communicator&, const Stream&) on main: a kernel between whose parts ranks exchange messages.
  // Every rank calls it at the same place, and the work says what is sent. It takes two ranks or more.
  template <class Body>
  void run_over_ranks(const Work& work, Body&& body) {
    check(ranks_.count > 1, "{} exchanges messages between ranks, and there is one", work.kernel);
    run(work, [&](const Stream& stream) { body(*communicator_, stream); });
  }
  // Runs what is no kernel, such as filling a batch or reading a value back.
  template <class Body>
  void run(Body&& body) {
    run(Work{.kind = WorkKind::host, .kernel = "host"}, std::forward<Body>(body));
  }
  // Returns the work of a phase, in order. Work outside of phases is not recorded. Where work is measured,
  // this waits until main has done it.
  [[nodiscard]] std::span<const WorkRecord> work(Phase phase) const;
  // From now on the device measures how long each piece of work takes. On a GPU that costs two events for
  // each piece, so it is off until this is called. To be called outside of phases.
  void measure_work();
  // Returns the seconds of all measured work so far, over all phases.
  [[nodiscard]] double work_seconds() const;
  // Runs body(const Stream&) on another stream; `touched` are the tensors that it works on. The body is
  // copied, so it may hold trivially copyable values only.
  template <class Body>
  void run_on(StreamId id, std::initializer_list<const Tensor*> touched, const Body& body) {
    check_in_phase("run_on");
    for (const Tensor* tensor : touched) touch(id, *tensor);
    if (!phantom()) backend_->submit(id, Task(body));
  }
  // Copies a dense tensor to another of the same size, between any two spaces.
  void copy(StreamId id, const Tensor& to, const Tensor& from);
  // Copies a part to another of the same size.
  void copy(StreamId id, const TensorPart& to, const TensorPart& from);

  // Starts messages to and from other ranks, on the stream communication, after what main was given so far.
  // The ticket is the moment when all of them are there: until a stream or the host has waited for it, work
  // may read what is sent, and may neither write it nor use what is received. Several exchanges may be under
  // way, and then are in no order: one that needs a part which another receives, or that receives into a part
  // of another, is an error, in a rehearsal already. The n-th message that rank a sends to rank b is the n-th
  // that b receives from a, of the same size.
  Ticket exchange(std::span<const Parcel> sends, std::span<const Parcel> receives, const StepLabel& step);
  // Slice r of the values has counts[r] elements. Each slice <- that of its rank, by an exchange.
  Ticket all_gather(const Tensor& values, std::span<const std::int64_t> counts,
                    const StepLabel& step = {"all-gather"});
  // The same where this rank has its slice, `own`, in another place. This rank's slice of `values` is not
  // written.
  Ticket all_gather(const Tensor& values, std::span<const std::int64_t> counts, const TensorPart& own,
                    const StepLabel& step);
  // Slice r of `from` goes to rank r and slice r of `to` comes from it, by an exchange; main copies this
  // rank's own slice.
  Ticket all_to_all(const Tensor& to, std::span<const std::int64_t> to_counts, const Tensor& from,
                    std::span<const std::int64_t> from_counts, const StepLabel& step = {"all-to-all"});
  // values <- their sum over all ranks (f32, f64 or bf16, dense), on main; every rank calls it at the same
  // place. With one rank they are their own sum: nothing is done and nothing is recorded.
  void all_reduce(const Tensor& values);
  // Slice r of the values has counts[r] elements. This rank's slice <- its sum over all ranks, as all_reduce
  // adds; the other slices stay as they are.
  void reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts);
  // The same sum, with the same bits, in two halves between which main goes on. The first starts an exchange:
  // until the second, work may read the values and may not write them. In between there is memory for what
  // all others send of this rank's slice; reduce_scatter gets by with 256 KiB for each of them.
  [[nodiscard]] SumInFlight start_reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts,
                                                 const StepLabel& step = {"reduce-scatter"});
  void finish_reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts, SumInFlight sum);
  // Returns the sum over all ranks of a number that the host has; it is no event of the ledger. A phantom
  // takes its own number for that of every rank.
  [[nodiscard]] double all_reduce(double value);

  // Returns a ticket for everything that the stream was given so far. What the waiter is given after wait()
  // comes after that.
  Ticket record(StreamId id);
  void wait(StreamId waiter, Ticket ticket);
  // Returns when everything before the ticket is done.
  void wait_on_host(Ticket ticket);

  // Returns the elements of a tensor in Space::host, for the host to read and write; a phantom has none. The
  // host has to have waited for the last work that a stream was given on the tensor; where it has not, that
  // is an error in a rehearsal already.
  template <class T>
  [[nodiscard]] std::span<T> host_elements(const Tensor& tensor) {
    check_host_access(tensor);
    return {tensor.data<T>(), static_cast<std::size_t>(phantom() ? 0 : tensor.view().elements())};
  }
  // Moves a whole dense tensor from or to ordinary host memory of the same size, through staging memory of
  // this context where the host cannot reach the tensor. See headroom/memory/staging.h, which also moves
  // parts, and data that is made or used piece by piece.
  void upload(const Tensor& to, std::span<const std::byte> from);
  void download(std::span<std::byte> to, const Tensor& from);

  // Returns when every stream is idle. To be called outside of phases.
  void synchronize();
  // Returns the seconds that main takes for the work that each of body(0), body(1) ... gives it, as the
  // device measures them; zeros on a phantom. The work is queued: the host waits for all of it
  // together.
  static constexpr std::size_t kMostTimed = 64;
  template <class Body>
  [[nodiscard]] std::vector<double> device_seconds(std::size_t count, const Body& body) {
    check(count <= kMostTimed, "{} pieces of work cannot be timed in a row, only {}", count, kMostTimed);
    std::vector<double> seconds(count);
    if (!phantom()) backend_->mark(0);
    for (std::size_t i = 0; i < count; ++i) {
      body(i);
      if (!phantom()) backend_->mark(static_cast<std::uint32_t>(i + 1));
    }
    for (std::size_t i = 0; i < count && !phantom(); ++i) {
      seconds[i] =
          backend_->seconds_between(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + 1));
    }
    return seconds;
  }

 private:
  friend class Staging;
  friend class Tensor;

  struct Block {
    Event event;  // its allocation
    std::int64_t offset = 0;
    std::int64_t phase_run = 0;
    StreamOrder::Stamp stamp;
    bool live = true;
  };

  // A part of a block that an exchange under way reads or writes.
  struct PartInFlight {
    std::uint32_t ticket = 0;
    Lifetime lifetime = Lifetime::phase;
    std::uint32_t block = 0;
    std::int64_t begin = 0;  // bytes
    std::int64_t end = 0;
    bool written = false;
  };
  struct ExchangeInFlight {
    std::uint32_t ticket = 0;
    MessageGroup group;
  };

  void begin_phase(Phase phase);
  void end_phase();
  void abandon_phase();
  void leave_phase();
  void end_stage() noexcept;
  void restart_order();
  [[nodiscard]] bool is_of_this_phase(Ticket ticket) const;
  void check_host_access(const Tensor& tensor);
  void touch(StreamId id, const Tensor& tensor);
  // What goes to other ranks in an exchange, or comes from them. Where messages are sampled, the parcels are
  // the first of those that follow each other in one tensor; the bytes are always those of all.
  struct Messages {
    std::vector<Parcel> parcels;
    std::int64_t bytes = 0;

    void add(const Parcel& parcel, NotedMessages noted) {
      const bool follows = !parcels.empty() && &parcels.back().part.tensor == &parcel.part.tensor;
      if (noted == NotedMessages::all || !follows) parcels.push_back(parcel);
    }
  };
  void send(const Parcel& parcel) { outgoing_.add(parcel, noted_messages_); }
  void receive(const Parcel& parcel) { incoming_.add(parcel, noted_messages_); }
  // Begins a new list of messages, which have so many bytes in all.
  void start_messages(std::int64_t sent_bytes, std::int64_t received_bytes);
  // Starts the exchange of the messages that were given since start_messages.
  Ticket exchange_messages(const StepLabel& step);
  void note_parcel(EventKind kind, const Parcel& parcel);
  // Waits until the exchanges before a record of the stream communication are done.
  void finish_exchanges(std::uint32_t record);
  void check_summable(const Tensor& values, std::string_view kernel);
  template <class Body>
  void sum_over_ranks(const Tensor& values, EventKind kind, std::string_view kernel, const Traffic& traffic,
                      const Body& body);
  void release(const Tensor& tensor);
  void release_quietly(const Tensor& tensor) noexcept;

  // For destructors: the next call that may throw throws what this found.
  template <class Body>
  void quietly(const Body& body) noexcept {
    try {
      body();
    } catch (const Error& error) {
      if (!deferred_) deferred_ = error;
    }
  }
  // Compares with the rehearsal, moves the cursor, writes the ledger.
  void note(const Event& event);
  void note_work(const Work& work, StreamId stream = StreamId::main);

  // The backend's marks: those of device_seconds, one where a phase begins, two of each piece of its work.
  static constexpr std::uint32_t kPhaseBegin = kMostTimed + 1;
  enum class Side : std::uint8_t { begin, end };
  static std::uint32_t work_mark(std::size_t piece, Side side) {
    return kPhaseBegin + 1 + static_cast<std::uint32_t>(2 * piece + (side == Side::end ? 1 : 0));
  }
  void mark_work(std::size_t piece, Side side);
  // Marks both sides of the work that was noted last, also where it throws.
  class TimedWork {
   public:
    explicit TimedWork(Context& context) : context_(context), piece_(context.work_cursor_ - 1) {
      context_.mark_work(piece_, Side::begin);
    }
    TimedWork(const TimedWork&) = delete;
    TimedWork& operator=(const TimedWork&) = delete;
    ~TimedWork() {
      context_.quietly([&] { context_.mark_work(piece_, Side::end); });
    }

   private:
    Context& context_;
    std::size_t piece_;
  };
  void collect_seconds() const;  // of the phase that ran last, once
  void throw_deferred();
  void check_in_phase(std::string_view call) const;
  [[nodiscard]] Block* find(const Tensor& tensor);
  [[nodiscard]] std::vector<Block>& blocks(Lifetime lifetime) {
    return lifetime == Lifetime::phase ? phase_blocks_ : run_blocks_;
  }
  [[nodiscard]] const Arena& arena(Space space) const { return arenas_[static_cast<std::size_t>(space)]; }
  [[nodiscard]] Arena& arena(Space space) { return arenas_[static_cast<std::size_t>(space)]; }

  Device device_;
  DeviceDescription description_;
  Backend* backend_ = nullptr;
  Communicator* communicator_ = nullptr;
  Ranks ranks_;
  NotedMessages noted_messages_ = NotedMessages::all;
  int errors_when_made_ = std::uncaught_exceptions();
  Layout layout_;
  std::array<Arena, kSpaceCount> arenas_;
  Ledger ledger_;
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  mutable std::vector<std::vector<WorkRecord>> work_;  // [phase][n-th piece]
  bool measures_work_ = false;
  mutable bool seconds_wait_ = false;  // those of the last phase are with the backend still

  // The open phase.
  bool in_phase_ = false;
  std::size_t phase_ = 0;
  std::int64_t phase_run_ = 0;      // counts the runs of all phases
  const Ledger* script_ = nullptr;  // whose trace has to be repeated; null: a rehearsal's first time
  std::size_t script_phase_ = 0;    // where in the script; also the layout's
  std::size_t cursor_ = 0;
  std::size_t work_cursor_ = 0;
  double phase_began_ = 0;  // since the Context was made
  std::size_t run_blocks_before_ = 0;
  StreamOrder order_;
  std::vector<Block> phase_blocks_;
  std::vector<Block> run_blocks_;
  std::vector<PartInFlight> parts_in_flight_;
  std::vector<ExchangeInFlight> exchanges_in_flight_;
  // Of the exchange that is started.
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  Messages outgoing_;
  Messages incoming_;
  std::optional<Error> deferred_;  // what a destructor found and could not throw
};

}  // namespace headroom
