#include "headroom/memory/context.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>

#include "headroom/core/bytes.h"

namespace headroom {
namespace {

void check_handed_over(const Arena& arena, std::int64_t wanted, std::string_view space) {
  if (arena.bytes() >= wanted) return;
  fail(ErrorKind::memory, "the {} memory handed over has {} bytes, the layout needs {}", space,
       format_count(arena.bytes()), format_count(wanted));
}

}  // namespace

Context::Context(DeviceDescription description, const Ranks& ranks, NotedMessages noted)
    : device_{description.kind, 0, true},
      description_(std::move(description)),
      ranks_(ranks),
      noted_messages_(noted) {
  validate(ranks);
}

Context::Context(Backend& backend, const Layout& layout, Communicator* communicator)
    : Context(backend, layout, Arena(backend, Space::device, layout.reserved(Space::device)),
              Arena(backend, Space::host, layout.reserved(Space::host)), communicator) {}

Context::Context(Backend& backend, Layout layout, Arena device, Arena host, Communicator* communicator)
    : device_(backend.device()),
      description_(backend.description()),
      backend_(&backend),
      communicator_(communicator),
      ranks_(communicator == nullptr ? Ranks{} : communicator->ranks()),
      layout_(std::move(layout)),
      arenas_{std::move(device), std::move(host)},
      ledger_(layout_.rehearsal.same_vocabulary()) {
  check_handed_over(arena(Space::device), layout_.reserved(Space::device), "device");
  check_handed_over(arena(Space::host), layout_.reserved(Space::host), "host");
  if (ranks_.count > 1) {
    backend.set_poll({[](void* ranks) { static_cast<Communicator*>(ranks)->progress(); }, communicator});
  }
}

Context::~Context() {
  if (ranks_.count > 1 && !phantom()) backend_->set_poll({});
  if (communicator_ != nullptr && std::uncaught_exceptions() > errors_when_made_) {
    std::array<char, 64> reason;  // a destructor takes nothing from the heap
    const auto end =
        fmt::format_to_n(reason.data(), reason.size(), "rank {} ended with an error", ranks_.rank).out;
    communicator_->abort(std::string_view(reason.data(), end));
  }
}

void Context::begin_phase(Phase phase) {
  if (in_phase_) {
    fail(ErrorKind::runtime, "phase '{}' begins inside phase '{}'", name(phase),
         name(ledger_.phases()[phase_].phase));
  }
  // A run repeats the layout's rehearsal; a rehearsal's own second run of a phase repeats its first.
  const Ledger& script = phantom() ? ledger_ : layout_.rehearsal;
  const std::optional<std::size_t> scripted = script.find_phase(phase);
  if (!scripted && !phantom()) {
    std::vector<std::string_view> names;
    for (const auto& known : script.phases()) names.push_back(name(known.phase));
    fail(ErrorKind::runtime, "phase '{}' was not rehearsed; rehearsed were: {}", name(phase),
         fmt::join(names, ", "));
  }
  collect_seconds();
  phase_began_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - made_).count();
  if (measures_work_) backend_->mark(kPhaseBegin);
  script_ = scripted ? &script : nullptr;
  script_phase_ = scripted.value_or(0);
  phase_ = ledger_.begin_phase(phase);
  in_phase_ = true;
  cursor_ = 0;
  work_cursor_ = 0;
  if (work_.size() <= phase_) work_.resize(phase_ + 1);
  ++phase_run_;
  run_blocks_before_ = run_blocks_.size();
  restart_order();
  phase_blocks_.clear();
  deferred_.reset();
}

// Nothing is under way. A side stream waits for main in every phase.
void Context::restart_order() {
  order_.reset();
  parts_in_flight_.clear();
  exchanges_in_flight_.clear();
  for (Block& block : run_blocks_) block.stamp = order_.allocate();
}

void Context::end_phase() {
  try {
    throw_deferred();
    const std::string_view phase = name(ledger_.phases()[phase_].phase);
    for (const Block& block : phase_blocks_) {
      if (!block.live) continue;
      fail(ErrorKind::runtime,
           "phase '{}' ends and leaks {} ({} bytes, {}); free it, or allocate it for the run", phase,
           ledger_.text(block.event.name), format_count(block.event.bytes),
           ledger_.stage_path(block.event.stage).text());
    }
    if (!order_.joined()) {
      fail(ErrorKind::runtime, "phase '{}' ends while another stream may still work; let main wait for it",
           phase);
    }
    for (const Block& block : run_blocks_) {  // between phases the host's memory is the host's own
      if (block.event.space == Space::device || order_.known_to_host(block.stamp)) continue;
      fail(ErrorKind::runtime,
           "phase '{}' ends while a stream may still work on '{}' in host memory; let the host wait for it",
           phase, ledger_.text(block.event.name));
    }
    if (script_ != nullptr) {
      const std::vector<Event>& events = script_->phases()[script_phase_].events;
      if (cursor_ < events.size()) {
        fail(ErrorKind::runtime,
             "phase '{}' departs from its rehearsal at event {}: rehearsed {}, the run ends", phase, cursor_,
             script_->describe(events[cursor_]));
      }
    }
  } catch (...) {
    abandon_phase();
    throw;
  }
  ledger_.end_phase();
  seconds_wait_ = measures_work_;
  leave_phase();
}

void Context::abandon_phase() {
  if (communicator_ != nullptr) {
    communicator_->abort(fmt::format("rank {} left phase '{}' with an error", ranks_.rank,
                                     name(ledger_.phases()[phase_].phase)));
  }
  if (!phantom()) {
    try {
      backend_->synchronize();  // nothing may still work on blocks that are given back here
    } catch (...) {
      // The error that ended the phase is on its way already, and says more.
    }
  }
  const auto close = [&](const Block& block) {
    if (block.live && !phantom()) arena(block.event.space).close(block.offset, block.event.bytes);
  };
  std::ranges::for_each(phase_blocks_, close);
  std::ranges::for_each(std::span(run_blocks_).subspan(run_blocks_before_), close);
  run_blocks_.resize(run_blocks_before_);
  restart_order();
  ledger_.abandon_phase();
  if (ledger_.phases().size() <= phase_) {
    work_[phase_].clear();  // with the trace of a first run
  } else {
    for (std::size_t piece = 0; piece < work_cursor_; ++piece) --work_[phase_][piece].runs;
  }
  leave_phase();
}

void Context::leave_phase() {
  in_phase_ = false;
  phase_blocks_.clear();
  deferred_.reset();
}

Context::OpenStage Context::stage(StageKind kind, std::int64_t index) {
  check_in_phase("stage");
  ledger_.open_stage({kind, index});
  note({.kind = EventKind::stage_begin, .stage = ledger_.stage()});
  return OpenStage(*this);
}

void Context::end_stage() noexcept {
  if (!in_phase_) return;
  const std::uint32_t stage = ledger_.stage();
  ledger_.close_stage();
  quietly([&] { note({.kind = EventKind::stage_end, .stage = stage}); });
}

void Context::note_work(const Work& work, StreamId stream) {
  check(phantom() || !work.assumed, "{} has no kernel for {} yet: its bytes can be planned, it cannot run",
        work.kernel, description_.name);
  if (!in_phase_) return;
  std::vector<WorkRecord>& records = work_[phase_];
  const std::size_t record = work_cursor_++;
  const WorkRecord first{.work = work, .stream = stream, .stage = ledger_.stage(), .events_before = cursor_};
  if (record == records.size()) records.push_back(first);
  WorkRecord& known = records[record];
  // Inspection may add pieces to a run that its first had not.
  if (known.work.kernel != work.kernel || known.stage != first.stage) known = first;
  ++known.runs;
}

void Context::measure_work() {
  check(!in_phase_, "measure_work is called inside of a phase");
  measures_work_ = !phantom();
}

void Context::mark_work(std::size_t piece, Side side) {
  if (measures_work_ && in_phase_) backend_->mark(work_mark(piece, side));
}

void Context::collect_seconds() const {
  if (!std::exchange(seconds_wait_, false)) return;
  for (std::size_t piece = 0; piece < work_cursor_; ++piece) {
    WorkRecord& record = work_[phase_][piece];
    if (record.work.kind == WorkKind::copy) continue;  // of any stream: they are not measured
    const std::uint32_t begin = work_mark(piece, Side::begin);
    record.last_seconds = backend_->seconds_between(begin, work_mark(piece, Side::end));
    record.seconds += record.last_seconds;
    record.began = phase_began_ + backend_->seconds_between(kPhaseBegin, begin);
  }
}

double Context::work_seconds() const {
  collect_seconds();
  double seconds = 0;
  for (const std::vector<WorkRecord>& phase : work_) {
    for (const WorkRecord& record : phase) seconds += record.seconds;
  }
  return seconds;
}

std::span<const WorkRecord> Context::work(Phase phase) const {
  collect_seconds();
  const std::optional<std::size_t> index = ledger_.find_phase(phase);
  return index && *index < work_.size() ? std::span<const WorkRecord>(work_[*index])
                                        : std::span<const WorkRecord>();
}

Tensor Context::allocate(const Allocation& allocation) {
  check_in_phase("allocate");
  std::vector<Block>& owners = blocks(allocation.lifetime);
  const Event event{.kind = EventKind::allocate,
                    .category = allocation.category,
                    .space = allocation.space,
                    .lifetime = allocation.lifetime,
                    .name = ledger_.intern(allocation.name),
                    .stage = ledger_.stage(),
                    .id = static_cast<std::uint32_t>(owners.size()),
                    .bytes = dense_bytes(allocation.dtype, allocation.shape)};
  note(event);
  Block block{.event = event, .offset = 0, .phase_run = phase_run_, .stamp = order_.allocate()};
  void* data = nullptr;
  if (!phantom()) {
    block.offset = allocation.lifetime == Lifetime::run ? layout_.run_offsets[event.id]
                                                        : layout_.phase_offsets[script_phase_][event.id];
    data = arena(event.space).open(block.offset, event.bytes);
  }
  owners.push_back(block);
  Tensor tensor;
  tensor.context_ = this;
  tensor.view_ = TensorView(data, allocation.dtype, allocation.shape);
  tensor.phase_run_ = phase_run_;
  tensor.id_ = event.id;
  tensor.lifetime_ = allocation.lifetime;
  return tensor;
}

Context::Block* Context::find(const Tensor& tensor) {
  std::vector<Block>& owners = blocks(tensor.lifetime_);
  if (tensor.id_ >= owners.size()) return nullptr;
  Block& block = owners[tensor.id_];
  return block.live && block.phase_run == tensor.phase_run_ ? &block : nullptr;
}

void Context::release(const Tensor& tensor) {
  Block* block = find(tensor);
  if (block == nullptr) return;  // its phase was abandoned and has given it back already
  if (in_phase_) {
    if (tensor.lifetime_ == Lifetime::run) {
      fail(ErrorKind::runtime, "'{}' lives for the run and is freed inside phase '{}'",
           ledger_.text(block->event.name), name(ledger_.phases()[phase_].phase));
    }
    if (!order_.may_free(block->stamp, block->event.space)) {
      fail(ErrorKind::runtime, "'{}' is freed while a stream may still work on it; {} first",
           ledger_.text(block->event.name),
           block->event.space == Space::host ? "let the host wait for that" : "let main wait for that");
    }
    Event event = block->event;
    event.kind = EventKind::free;
    event.stage = ledger_.stage();
    note(event);
  } else {
    ledger_.remove_live(block->event.space, block->event.category, block->event.bytes);
  }
  block->live = false;
  if (!phantom()) arena(block->event.space).close(block->offset, block->event.bytes);
}

void Context::release_quietly(const Tensor& tensor) noexcept {
  quietly([&] { release(tensor); });
}

void Context::touch(StreamId id, const Tensor& tensor) {
  Block* block = find(tensor);
  if (block == nullptr)
    fail(ErrorKind::runtime, "stream {} is given a tensor that was freed", headroom::name(id));
  // Every allocation and free of device memory is ordered with main's work already.
  if (id == StreamId::main && block->event.space == Space::device) return;
  if (!order_.touch(block->stamp, id)) {
    fail(ErrorKind::runtime, "stream {} works on '{}' without having waited for main since its allocation",
         headroom::name(id), ledger_.text(block->event.name));
  }
  Event event = block->event;
  event.kind = EventKind::touch;
  event.stream = id;
  event.stage = ledger_.stage();
  note(event);
}

void Context::copy(StreamId id, const Tensor& to, const Tensor& from) {
  copy(id, {to, 0, to.view().elements()}, {from, 0, from.view().elements()});
}

void Context::copy(StreamId id, const TensorPart& to, const TensorPart& from) {
  check_in_phase("copy");
  const TensorView target = to.view();
  const TensorView source = from.view();
  check(target.bytes() == source.bytes(),
        "copy of {} elements of {} to {} of {}: both have to be of one size", source.elements(),
        name(source.dtype()), target.elements(), name(target.dtype()));
  touch(id, from.tensor);
  touch(id, to.tensor);
  Work work{.kind = WorkKind::copy, .kernel = "copy", .bytes = 2.0 * static_cast<double>(target.bytes())};
  const auto give = [&](const Stream&) { backend_->copy(id, target.raw(), source.raw(), target.bytes()); };
  if (id == StreamId::main && find(to.tensor)->event.space == find(from.tensor)->event.space) {
    work.kind = WorkKind::kernel;
    return run(work, give);
  }
  note_work(work, id);
  if (!phantom()) give({});
}

TensorView TensorPart::view() const {
  return tensor.view().reshape({tensor.view().elements()}).slice(0, begin, elements);
}

Ticket Context::record(StreamId id) {
  check_in_phase("record");
  note({.kind = EventKind::record, .stream = id, .stage = ledger_.stage(), .id = order_.records()});
  const Ticket ticket{order_.record(id), phase_run_};
  if (!phantom()) backend_->record(id, ticket.number);
  return ticket;
}

bool Context::is_of_this_phase(Ticket ticket) const {
  return ticket.phase_run == phase_run_ && ticket.number < order_.records();
}

void Context::wait(StreamId waiter, Ticket ticket) {
  check_in_phase("wait");
  if (!is_of_this_phase(ticket)) {
    fail(ErrorKind::runtime, "stream {} waits for a record of another phase", headroom::name(waiter));
  }
  note({.kind = EventKind::wait, .stream = waiter, .stage = ledger_.stage(), .id = ticket.number});
  order_.wait(waiter, ticket.number);
  finish_exchanges(ticket.number);
  if (!phantom()) backend_->wait(waiter, ticket.number);
}

void Context::wait_on_host(Ticket ticket) {
  check_in_phase("wait_on_host");
  if (!is_of_this_phase(ticket)) fail(ErrorKind::runtime, "the host waits for a record of another phase");
  note({.kind = EventKind::wait_on_host, .stage = ledger_.stage(), .id = ticket.number});
  order_.wait_on_host(ticket.number);
  finish_exchanges(ticket.number);
  if (!phantom()) backend_->wait_on_host(ticket.number);
}

void Context::check_host_access(const Tensor& tensor) {
  const Block* block = find(tensor);
  if (block == nullptr) fail(ErrorKind::runtime, "the host is given a tensor that was freed");
  const std::string_view name = ledger_.text(block->event.name);
  if (block->event.space != Space::host) {
    fail(ErrorKind::runtime,
         "the host reads or writes '{}', which is in device memory; download or upload it", name);
  }
  if (!order_.known_to_host(block->stamp)) {
    fail(
        ErrorKind::runtime,
        "the host reads or writes '{}' while a stream may still work on it; let the host wait for that first",
        name);
  }
}

void Context::synchronize() {
  if (in_phase_) {
    fail(ErrorKind::runtime, "synchronize is called in phase '{}'; there the host waits for a ticket",
         name(ledger_.phases()[phase_].phase));
  }
  if (!phantom()) backend_->synchronize();
}

void Context::check_in_phase(std::string_view call) const {
  if (!in_phase_) fail(ErrorKind::runtime, "{} is called outside of a phase", call);
}

void Context::note(const Event& event) {
  throw_deferred();
  if (script_ != nullptr) {
    const std::vector<Event>& events = script_->phases()[script_phase_].events;
    if (cursor_ >= events.size() || events[cursor_] != event) [[unlikely]] {
      fail(ErrorKind::runtime,
           "phase '{}' departs from its rehearsal at event {}: rehearsed {}, the run asks to {}",
           name(ledger_.phases()[phase_].phase), cursor_,
           cursor_ < events.size() ? script_->describe(events[cursor_]) : "the end", ledger_.describe(event));
    }
  }
  ++cursor_;
  ledger_.append(event);
}

void Context::throw_deferred() {
  if (!deferred_) return;
  const Error error = *deferred_;
  deferred_.reset();
  throw error;
}

}  // namespace headroom
