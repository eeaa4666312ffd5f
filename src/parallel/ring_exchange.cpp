#include "parallel/ring_exchange.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "headroom/ops/elementwise.h"

namespace headroom {
namespace {

StepLabel step_of(const Transfer& transfer) {
  return {"ring step", transfer.step};
}

std::int64_t dense_elements(const RingSchedule& schedule) {
  const AttentionProblem& problem = schedule.problem();
  return checked_multiply(2 * problem.batch * schedule.most_keys(), problem.heads_kv * problem.head_dim);
}

std::int64_t packed_elements(const RingSchedule& schedule) {
  return checked_multiply(2 * schedule.most_rows(), schedule.problem().head_dim);
}

// K and V of a transfer as one message.
TensorPart whole_message(const RingSchedule& schedule, const Transfer& transfer,
                         const TransferBuffer& buffer) {
  return buffer.part(2 * transfer.row_count * schedule.problem().head_dim);
}

void wait_for(Context& context, std::optional<Ticket>& ticket) {
  if (ticket) context.wait(StreamId::main, *ticket);
  ticket.reset();
}

}  // namespace

std::int64_t local_row(const Partition& partition, int rank, std::int64_t position) {
  std::int64_t row = 0;
  for (const Piece& piece : partition.pieces[static_cast<std::size_t>(rank)]) {
    if (piece.begin <= position && position < piece.end) return row + position - piece.begin;
    row += piece.size();
  }
  fail(ErrorKind::runtime, "rank {} does not hold position {}", rank, position);
}

TransferBuffer::TransferBuffer(Context& context, std::string_view name, DType dtype, std::int64_t elements)
    : tensor_(context.allocate(
          {.name = name, .category = Category::communication, .dtype = dtype, .shape = {elements}})) {}

KeyValueViews TransferBuffer::views(const AttentionProblem& problem, const Transfer& transfer) const {
  const Shape shape{problem.batch, transfer.keys.size(), problem.heads_kv, problem.head_dim};
  const TensorView& all = tensor_;
  return {all.slice(0, 0, shape.elements()).reshape(shape),
          all.slice(0, shape.elements(), shape.elements()).reshape(shape)};
}

KeyValueViews TransferBuffer::packed(const AttentionProblem& problem, const Transfer& transfer) const {
  const std::int64_t elements = transfer.row_count * problem.head_dim;
  const TensorView& all = tensor_;
  return {all.slice(0, 0, elements), all.slice(0, elements, elements)};
}

KeyExchange::KeyExchange(Context& context, const RingSchedule& schedule, const RingPlace& place, Pass pass,
                         const Tensor& key, const Tensor& value)
    : context_(context),
      schedule_(schedule),
      place_(place),
      depth_(RingDepth::of(schedule.packs(), pass)),
      key_(key),
      value_(value),
      arriving_(static_cast<std::size_t>(depth_.keys + 1)) {
  const DType dtype = schedule.problem().dtype;
  const std::int64_t dense = dense_elements(schedule);
  if (schedule.packs()) {
    received_.emplace_back(context, "ring K and V, unpacked", dtype, dense);
    packed_.emplace_back(context, "ring K and V, received", dtype, packed_elements(schedule));
    packed_.emplace_back(context, "ring K and V, sent", dtype, packed_elements(schedule));
    return;
  }
  const std::int64_t turns = std::min(depth_.keys + 1, schedule.most_slots());
  for (std::int64_t i = 0; i < turns; ++i) {
    received_.emplace_back(context, "ring K and V, received", dtype, dense);
  }
}

TransferBuffer& KeyExchange::arrives_in(std::int64_t slot) {
  if (schedule_.packs()) return packed_[0];
  return received_[static_cast<std::size_t>(slot) % received_.size()];
}

void KeyExchange::start() {
  for (std::int64_t slot = 0; slot < depth_.keys; ++slot) start(slot);
}

void KeyExchange::start(std::int64_t slot) {
  if (slot >= schedule_.slots()) return;
  const AttentionProblem& problem = schedule_.problem();
  // The receive first: to wait for it is to wait for what was started before it, and not for this send.
  if (const Transfer* transfer = schedule_.received(place_.member, slot)) {
    const TransferBuffer& buffer = arrives_in(slot);
    std::vector<Parcel> receives;
    if (schedule_.packs()) {
      receives.push_back({place_.rank_of(transfer->owner), whole_message(schedule_, *transfer, buffer)});
    } else {
      const std::int64_t elements = transfer->keys.size() * problem.heads_kv * problem.head_dim;
      for (std::int64_t i = 0; i < 2 * problem.batch; ++i) {
        receives.push_back({place_.rank_of(transfer->owner), buffer.part(elements, i * elements)});
      }
    }
    arriving_[static_cast<std::size_t>(slot) % arriving_.size()] =
        context_.exchange({}, receives, step_of(*transfer));
  }
  if (const Transfer* transfer = schedule_.sent(place_.member, slot)) send(*transfer);
}

void KeyExchange::send(const Transfer& transfer) {
  const AttentionProblem& problem = schedule_.problem();
  const std::int64_t row = local_row(schedule_.partition(), place_.member, transfer.keys.begin);
  std::vector<Parcel> sends;
  if (schedule_.packs()) {
    wait_for(context_, sending_);
    const KeyValueViews packed = packed_[1].packed(problem, transfer);
    const std::int64_t first = transfer.keys.begin - row;
    pack_rows(context_, transfer, packed.key, {key_, first});
    pack_rows(context_, transfer, packed.value, {value_, first});
    sends.push_back({place_.rank_of(transfer.reader), whole_message(schedule_, transfer, packed_[1])});
  } else {
    const std::int64_t row_elements = problem.heads_kv * problem.head_dim;
    for (const Tensor* tensor : {&key_, &value_}) {
      for (std::int64_t b = 0; b < problem.batch; ++b) {
        const std::int64_t begin = (b * tensor->view().extent(1) + row) * row_elements;
        sends.push_back(
            {place_.rank_of(transfer.reader), {*tensor, begin, transfer.keys.size() * row_elements}});
      }
    }
  }
  sending_ = context_.exchange(sends, {}, step_of(transfer));
}

KeyValueViews KeyExchange::receive(std::int64_t slot) {
  const AttentionProblem& problem = schedule_.problem();
  KeyValueViews views;
  if (const Transfer* transfer = schedule_.received(place_.member, slot)) {
    wait_for(context_, arriving_[static_cast<std::size_t>(slot) % arriving_.size()]);
    const TransferBuffer& buffer = arrives_in(slot);
    views = (schedule_.packs() ? received_[0] : buffer).views(problem, *transfer);
    if (schedule_.packs()) {
      const KeyValueViews packed = buffer.packed(problem, *transfer);
      unpack_rows(context_, *transfer, {views.key, transfer->keys.begin}, packed.key);
      unpack_rows(context_, *transfer, {views.value, transfer->keys.begin}, packed.value);
    }
  }
  start(slot + depth_.keys);  // into the buffer of the slot before
  return views;
}

void KeyExchange::finish() {
  wait_for(context_, sending_);
}

GradientExchange::GradientExchange(Context& context, const RingSchedule& schedule, const RingPlace& place,
                                   const KeyValueViews& sums)
    : context_(context), schedule_(schedule), place_(place), sums_(sums) {
  const RingDepth depth = RingDepth::of(schedule.packs(), Pass::backward);
  const DType dtype = schedule.problem().dtype_of_sums();
  const std::int64_t dense = dense_elements(schedule);
  const std::int64_t packed = packed_elements(schedule);
  if (schedule.packs()) unpacked_.emplace(context, "ring dK and dV, computed", dtype, dense);
  for (std::int64_t i = 0; i < std::min(depth.computed, schedule.most_slots()); ++i) {
    departures_.push_back({{context, "ring dK and dV, sent", dtype, schedule.packs() ? packed : dense}});
  }
  for (std::int64_t i = 0; i < std::min(depth.received, schedule.most_slots()); ++i) {
    arrivals_.push_back({{context, "ring dK and dV, received", dtype, packed}});
  }
}

KeyValueViews GradientExchange::begin(const Transfer& transfer) {
  Departure& next = departures_[sent_ % departures_.size()];
  if (!unpacked_) wait_for(context_, next.ticket);
  const KeyValueViews views = (unpacked_ ? *unpacked_ : next.buffer).views(schedule_.problem(), transfer);
  zero(context_, views.key);
  zero(context_, views.value);
  return views;
}

void GradientExchange::send(const Transfer& transfer) {
  const AttentionProblem& problem = schedule_.problem();
  Departure& next = departures_[sent_++ % departures_.size()];
  if (unpacked_) {
    wait_for(context_, next.ticket);
    const KeyValueViews views = unpacked_->views(problem, transfer);
    const KeyValueViews packed = next.buffer.packed(problem, transfer);
    pack_rows(context_, transfer, packed.key, {views.key, transfer.keys.begin});
    pack_rows(context_, transfer, packed.value, {views.value, transfer.keys.begin});
  }
  const Parcel parcel{place_.rank_of(transfer.owner), whole_message(schedule_, transfer, next.buffer)};
  next.ticket = context_.exchange({&parcel, 1}, {}, step_of(transfer));
}

void GradientExchange::end(std::int64_t slot) {
  if (const Transfer* transfer = schedule_.received(place_.member, slot)) send(*transfer);
  const Transfer* transfer = schedule_.sent(place_.member, slot);
  if (transfer == nullptr) return;
  Arrival& next = arrivals_[received_++ % arrivals_.size()];
  add_arrived(next);
  next.transfer = transfer;
  const Parcel parcel{place_.rank_of(transfer->reader), whole_message(schedule_, *transfer, next.buffer)};
  next.ticket = context_.exchange({}, {&parcel, 1}, step_of(*transfer));
}

void GradientExchange::add_arrived(Arrival& arrival) {
  if (arrival.transfer == nullptr) return;
  wait_for(context_, arrival.ticket);
  const Transfer& transfer = *arrival.transfer;
  const KeyValueViews packed = arrival.buffer.packed(schedule_.problem(), transfer);
  const std::int64_t first =
      transfer.keys.begin - local_row(schedule_.partition(), place_.member, transfer.keys.begin);
  add_packed_rows(context_, transfer, {sums_.key, first}, packed.key);
  add_packed_rows(context_, transfer, {sums_.value, first}, packed.value);
  arrival.transfer = nullptr;
}

void GradientExchange::finish() {
  // In the order of the slots, so that the bits are the same every time.
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    add_arrived(arrivals_[(received_ + i) % arrivals_.size()]);
  }
  for (Departure& departure : departures_) wait_for(context_, departure.ticket);
}

}  // namespace headroom
