// What a Context does with other ranks: exchanges of messages, and sums.
#include <algorithm>
#include <numeric>

#include "headroom/core/bytes.h"
#include "headroom/memory/context.h"

namespace headroom {
namespace {

void check_counts(const Tensor& values, std::span<const std::int64_t> counts, int ranks) {
  check(std::ssize(counts) == ranks, "{} slices are given for {} ranks", counts.size(), ranks);
  for (const std::int64_t count : counts) check(count >= 0, "a slice of {} elements is impossible", count);
  const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  check(elements == values.view().elements(), "slices have {} elements in all, the tensor has {}", elements,
        values.view().elements());
}

TensorPart slice(const Tensor& values, std::span<const std::int64_t> counts, int rank) {
  const auto count = counts.begin() + rank;
  return {values, std::accumulate(counts.begin(), count, std::int64_t{0}), *count};
}

std::int64_t bytes_of(const Tensor& tensor, std::int64_t elements) {
  return elements * size_bytes(tensor.view().dtype());
}

std::int64_t bytes_of(std::span<const Parcel> parcels) {
  std::int64_t bytes = 0;
  for (const Parcel& parcel : parcels) bytes += bytes_of(parcel.part.tensor, parcel.part.elements);
  return bytes;
}

// Of all slices but one.
std::int64_t bytes_of_others(const Tensor& values, std::span<const std::int64_t> counts, int rank) {
  return bytes_of(values, values.view().elements() - counts[static_cast<std::size_t>(rank)]);
}

std::size_t size_of(const TensorView& view) {
  return static_cast<std::size_t>(view.bytes());
}

}  // namespace

void Context::start_messages(std::int64_t sent_bytes, std::int64_t received_bytes) {
  outgoing_.parcels.clear();
  incoming_.parcels.clear();
  outgoing_.bytes = sent_bytes;
  incoming_.bytes = received_bytes;
}

Ticket Context::exchange(std::span<const Parcel> sends, std::span<const Parcel> receives,
                         const StepLabel& step) {
  start_messages(bytes_of(sends), bytes_of(receives));
  for (const Parcel& parcel : sends) send(parcel);
  for (const Parcel& parcel : receives) receive(parcel);
  return exchange_messages(step);
}

Ticket Context::exchange_messages(const StepLabel& step) {
  check_in_phase("exchange");
  const std::vector<Parcel>& sends = outgoing_.parcels;
  const std::vector<Parcel>& receives = incoming_.parcels;
  wait(StreamId::communication, record(StreamId::main));
  Work work{.kind = WorkKind::communication, .kernel = "exchange"};
  sends_.clear();
  receives_.clear();
  for (const Parcel& parcel : sends) note_parcel(EventKind::send, parcel);
  for (const Parcel& parcel : receives) note_parcel(EventKind::receive, parcel);
  work.sent_bytes = outgoing_.bytes;
  work.received_bytes = incoming_.bytes;
  work.bytes = static_cast<double>(work.sent_bytes);
  if (!sends.empty() || !receives.empty()) {
    note_work(work, StreamId::communication);
    if (!phantom()) {
      for (const auto& [peer, part] : sends) {
        const TensorView view = part.view();
        sends_.push_back({peer, {static_cast<const std::byte*>(view.raw()), size_of(view)}});
      }
      for (const auto& [peer, part] : receives) {
        const TensorView view = part.view();
        receives_.push_back({peer, {static_cast<std::byte*>(view.raw()), size_of(view)}});
      }
      const TimedWork timed(*this);  // of the start: what main waits for is not this work's alone
      const std::uint32_t next = order_.records();
      if (description_.host_accessible()) {
        // There the messages are started by the host and not by the stream, whose tasks come first.
        backend_->record(StreamId::communication, next);
        backend_->wait_on_host(next);
      }
      exchanges_in_flight_.push_back(
          {next, communicator_->start(sends_, receives_, step, backend_->stream(StreamId::communication))});
    }
  }
  return record(StreamId::communication);
}

void Context::note_parcel(EventKind kind, const Parcel& parcel) {
  check(parcel.peer >= 0 && parcel.peer < ranks_.count && parcel.peer != ranks_.rank,
        "rank {} exchanges messages with rank {}; accepted are the other ranks of {}", ranks_.rank,
        parcel.peer, ranks_.count);
  const Tensor& tensor = parcel.part.tensor;
  static_cast<void>(parcel.part.view());  // throws where the tensor has no such part
  touch(StreamId::communication, tensor);
  const Block* block = find(tensor);
  const std::int64_t element = size_bytes(tensor.view().dtype());
  const PartInFlight part{.ticket = order_.records(),
                          .lifetime = tensor.lifetime_,
                          .block = tensor.id_,
                          .begin = parcel.part.begin * element,
                          .end = (parcel.part.begin + parcel.part.elements) * element,
                          .written = kind == EventKind::receive};
  for (const PartInFlight& other : parts_in_flight_) {
    const bool overlap = other.lifetime == part.lifetime && other.block == part.block &&
                         other.begin < part.end && part.begin < other.end;
    if (overlap && (other.written || part.written)) {
      fail(ErrorKind::runtime, "an exchange {} '{}' while one under way {} it; wait for that first",
           part.written ? "receives" : "sends", ledger_.text(block->event.name),
           other.written ? "receives" : "sends");
    }
  }
  // One part for many ranks is one entry, and so are parts that follow one another: with a thousand ranks
  // there would be as many of them to compare with.
  const auto goes_on = [&](const PartInFlight& last) {
    return last.ticket == part.ticket && last.lifetime == part.lifetime && last.block == part.block &&
           last.written == part.written &&
           (part.begin == last.end || (part.begin == last.begin && part.end == last.end));
  };
  if (!parts_in_flight_.empty() && goes_on(parts_in_flight_.back())) {
    parts_in_flight_.back().end = part.end;
  } else {
    parts_in_flight_.push_back(part);
  }
  note({.kind = kind,
        .stream = StreamId::communication,
        .name = block->event.name,
        .stage = ledger_.stage(),
        .id = static_cast<std::uint32_t>(parcel.peer),
        .bytes = part.end - part.begin});
}

void Context::finish_exchanges(std::uint32_t record) {
  if (order_.stream_of(record) != StreamId::communication) return;
  const auto before = [&](const auto& in_flight) { return in_flight.ticket <= record; };
  for (const ExchangeInFlight& exchange : exchanges_in_flight_) {
    if (before(exchange)) communicator_->wait(exchange.group);
  }
  const bool some = std::erase_if(exchanges_in_flight_, before) > 0;
  // The record was made when the messages were started, and the stream waits for them only now. Made again
  // it comes after them, and nobody has waited for it yet who should have waited for them.
  if (some && !description_.host_accessible()) backend_->record(StreamId::communication, record);
  std::erase_if(parts_in_flight_, before);
}

Ticket Context::all_gather(const Tensor& values, std::span<const std::int64_t> counts,
                           const StepLabel& step) {
  check_counts(values, counts, ranks_.count);
  return all_gather(values, counts, slice(values, counts, ranks_.rank), step);
}

Ticket Context::all_gather(const Tensor& values, std::span<const std::int64_t> counts, const TensorPart& own,
                           const StepLabel& step) {
  check_counts(values, counts, ranks_.count);
  const std::int64_t count = counts[static_cast<std::size_t>(ranks_.rank)];
  check(own.elements == count && own.tensor.view().dtype() == values.view().dtype(),
        "rank {} gathers with {} elements of {} of its own; its slice has {} of {}", ranks_.rank,
        own.elements, name(own.tensor.view().dtype()), count, name(values.view().dtype()));
  start_messages((ranks_.count - 1) * bytes_of(own.tensor, own.elements),
                 bytes_of_others(values, counts, ranks_.rank));
  std::int64_t begin = 0;
  for (int peer = 0; peer < ranks_.count; ++peer) {
    const std::int64_t theirs = counts[static_cast<std::size_t>(peer)];
    if (peer != ranks_.rank && own.elements > 0) send({peer, own});
    if (peer != ranks_.rank && theirs > 0) receive({peer, {values, begin, theirs}});
    begin += theirs;
  }
  return exchange_messages(step);
}

Ticket Context::all_to_all(const Tensor& to, std::span<const std::int64_t> to_counts, const Tensor& from,
                           std::span<const std::int64_t> from_counts, const StepLabel& step) {
  check_counts(to, to_counts, ranks_.count);
  check_counts(from, from_counts, ranks_.count);
  start_messages(bytes_of_others(from, from_counts, ranks_.rank),
                 bytes_of_others(to, to_counts, ranks_.rank));
  for (int peer = 0; peer < ranks_.count; ++peer) {
    if (peer == ranks_.rank) continue;
    send({peer, slice(from, from_counts, peer)});
    receive({peer, slice(to, to_counts, peer)});
  }
  copy(StreamId::main, slice(to, to_counts, ranks_.rank), slice(from, from_counts, ranks_.rank));
  return exchange_messages(step);
}

void Context::check_summable(const Tensor& values, std::string_view kernel) {
  check_in_phase(kernel);
  const Block* block = find(values);
  check(block != nullptr, "{} is given a tensor that was freed", kernel);
  check(order_.known_to_main(block->stamp),
        "'{}' is summed over ranks while another stream may still work on it",
        ledger_.text(block->event.name));
  const DType dtype = values.view().dtype();
  check(values.view().is_dense() && (dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16),
        "'{}' is summed over ranks: it has to be dense f32, f64 or bf16, not {}",
        ledger_.text(block->event.name), name(dtype));
}

template <class Body>
void Context::sum_over_ranks(const Tensor& values, EventKind kind, std::string_view kernel,
                             const Traffic& traffic, const Body& body) {
  check_summable(values, kernel);
  if (ranks_.count == 1) return;
  const std::int64_t bytes = values.view().bytes();
  const std::int64_t workspace_bytes = reduction_workspace_bytes(ranks_.count, bytes);
  const Tensor workspace = allocate({.name = "sum over ranks",
                                     .category = Category::communication,
                                     .dtype = DType::u8,
                                     .shape = {workspace_bytes}});
  note({.kind = kind, .stage = ledger_.stage(), .bytes = bytes});
  run(Work{.kind = WorkKind::communication,
           .kernel = kernel,
           .bytes = static_cast<double>(bytes),
           .workspace_bytes = workspace_bytes,
           .sent_bytes = traffic.sent_bytes,
           .received_bytes = traffic.received_bytes},
      [&](const Stream& stream) {
        const std::span elements(workspace.data<std::uint8_t>(), static_cast<std::size_t>(workspace_bytes));
        body(std::as_writable_bytes(elements), stream);
      });
}

void Context::all_reduce(const Tensor& values) {
  const Traffic traffic = all_reduce_traffic(ranks_, values.view().bytes());
  sum_over_ranks(values, EventKind::all_reduce, "all-reduce", traffic,
                 [&](std::span<std::byte> workspace, const Stream& stream) {
                   communicator_->all_reduce(values, workspace, stream);
                 });
}

void Context::reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts) {
  check_counts(values, counts, ranks_.count);
  const std::int64_t element = size_bytes(values.view().dtype());
  const std::int64_t own = counts[static_cast<std::size_t>(ranks_.rank)] * element;
  sum_over_ranks(values, EventKind::reduce_scatter, "reduce-scatter",
                 reduce_scatter_traffic(ranks_, values.view().bytes(), own),
                 [&](std::span<std::byte> workspace, const Stream& stream) {
                   communicator_->reduce_scatter(values, counts, workspace, stream);
                 });
}

SumInFlight Context::start_reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts,
                                          const StepLabel& step) {
  check_counts(values, counts, ranks_.count);
  check_summable(values, "reduce-scatter");
  if (ranks_.count == 1) return {};
  const std::int64_t own = counts[static_cast<std::size_t>(ranks_.rank)];
  SumInFlight sum{.parts = allocate({.name = "parts of a sum",
                                     .category = Category::communication,
                                     .dtype = values.view().dtype(),
                                     .shape = {(ranks_.count - 1) * own}}),
                  .arrived = {}};
  start_messages(bytes_of_others(values, counts, ranks_.rank), (ranks_.count - 1) * bytes_of(values, own));
  std::int64_t begin = 0;
  std::int64_t received = 0;
  for (int peer = 0; peer < ranks_.count; ++peer) {
    const std::int64_t theirs = counts[static_cast<std::size_t>(peer)];
    if (peer != ranks_.rank && theirs > 0) send({peer, {values, begin, theirs}});
    if (peer != ranks_.rank && own > 0) {
      receive({peer, {sum.parts, received, own}});
      received += own;
    }
    begin += theirs;
  }
  sum.arrived = exchange_messages(step);
  return sum;
}

void Context::finish_reduce_scatter(const Tensor& values, std::span<const std::int64_t> counts,
                                    SumInFlight sum) {
  check_counts(values, counts, ranks_.count);
  if (ranks_.count == 1) return;
  wait(StreamId::main, sum.arrived);
  const TensorView own = slice(values, counts, ranks_.rank).view();
  if (own.elements() > 0) {
    run(Work{.kernel = "sum of parts", .bytes = static_cast<double>((ranks_.count + 1) * own.bytes())},
        [&](const Stream& stream) {
          const std::span others(static_cast<const std::byte*>(sum.parts.view().raw()),
                                 size_of(sum.parts.view()));
          communicator_->add_parts(own, others, stream);
        });
  }
  sum.parts.free();
}

double Context::all_reduce(double value) {
  if (ranks_.count == 1) return value;
  return phantom() ? value * ranks_.count : communicator_->all_reduce(value);
}

}  // namespace headroom
