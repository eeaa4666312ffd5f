#include "headroom/memory/staging.h"

#include <algorithm>
#include <cstring>

namespace headroom {
namespace {

constexpr std::int64_t kElementBytes = 8;  // of the widest type

// A whole dense tensor.
TensorPart whole(const Tensor& tensor) {
  return {tensor, 0, tensor.view().elements()};
}

void check_size(std::int64_t host_bytes, const Tensor& tensor) {
  check(host_bytes == tensor.view().bytes(), "{} bytes of host memory are given for a tensor of {}",
        host_bytes, tensor.view().bytes());
}

// A part's memory, cut into pieces of whole elements.
struct Bytes {
  Bytes(const TensorView& view, std::int64_t piece_bytes)
      : data(static_cast<std::byte*>(view.raw())),
        elements(view.elements()),
        element_bytes(size_bytes(view.dtype())),
        piece(piece_bytes / element_bytes) {}

  [[nodiscard]] std::byte* at(std::int64_t first) const { return data + first * element_bytes; }
  [[nodiscard]] std::int64_t bytes() const { return elements * element_bytes; }
  [[nodiscard]] std::int64_t bytes(std::int64_t first) const {  // of the piece that begins there
    return std::min(piece, elements - first) * element_bytes;
  }

  std::byte* data;
  std::int64_t elements;
  std::int64_t element_bytes;
  std::int64_t piece;  // elements
};

}  // namespace

Staging::Staging(Context& context, std::int64_t largest_transfer_bytes)
    : context_(context),
      piece_bytes_(context.description().host_accessible()
                       ? 0
                       : std::clamp(largest_transfer_bytes, kElementBytes, kPieceBytes)) {
  for (Slot& slot : slots_) {
    slot.memory = context.allocate({.name = "staging piece",
                                    .category = Category::staging,
                                    .dtype = DType::u8,
                                    .shape = {piece_bytes_},
                                    .space = Space::host});
    slot.copied = context.record(StreamId::main);
  }
}

Staging::~Staging() {
  context_.quietly([&] { context_.wait_on_host(context_.record(StreamId::main)); });
}

void Staging::check_order(const TensorPart& part) {
  const Context::Block* block = context_.find(part.tensor);
  if (block == nullptr) fail(ErrorKind::runtime, "a tensor is uploaded or downloaded that was freed");
  if (!context_.order_.known_to_main(block->stamp)) {
    fail(ErrorKind::runtime,
         "'{}' is uploaded or downloaded while another stream may still work on it; let main wait for that",
         context_.ledger_.text(block->event.name));
  }
}

bool Staging::in_place(const Tensor& tensor) const {
  return context_.description().host_accessible() || context_.find(tensor)->event.space == Space::host;
}

void Staging::mark(const Slot& slot) {
  context_.order_.record_again(slot.copied.number, StreamId::main);
  context_.backend_->record(StreamId::main, slot.copied.number);
}

void Staging::wait(const Slot& slot) {
  context_.order_.wait_on_host(slot.copied.number);
  context_.backend_->wait_on_host(slot.copied.number);
}

void Staging::wait_for_main() {
  mark(slots_[0]);
  wait(slots_[0]);
}

void Staging::copy(const Slot& slot, std::byte* to, const std::byte* from, std::int64_t bytes) {
  static_cast<void>(context_.order_.touch(context_.find(slot.memory)->stamp, StreamId::main));
  context_.backend_->copy(StreamId::main, to, from, bytes);
  mark(slot);
}

void Staging::upload(const TensorPart& to, const Produce& produce) {
  const Bytes target(to.view(), piece_bytes_);
  check_order(to);
  if (context_.phantom() || target.elements == 0) return;
  if (in_place(to.tensor)) {
    wait_for_main();
    return produce({target.data, static_cast<std::size_t>(target.bytes())}, 0);
  }
  for (std::int64_t first = 0; first < target.elements; first += target.piece) {
    const Slot& slot = next_slot();
    wait(slot);
    auto* memory = static_cast<std::byte*>(slot.memory.view().raw());
    produce({memory, static_cast<std::size_t>(target.bytes(first))}, first);
    copy(slot, target.at(first), memory, target.bytes(first));
  }
}

void Staging::download(const TensorPart& from, const Consume& consume) {
  const Bytes source(from.view(), piece_bytes_);
  check_order(from);
  if (context_.phantom() || source.elements == 0) return;
  if (in_place(from.tensor)) {
    wait_for_main();
    return consume({source.data, static_cast<std::size_t>(source.bytes())}, 0);
  }
  const auto fetch = [&](std::int64_t first) {
    const Slot& slot = next_slot();
    copy(slot, static_cast<std::byte*>(slot.memory.view().raw()), source.at(first), source.bytes(first));
    return &slot;
  };
  const Slot* arriving = fetch(0);
  for (std::int64_t first = 0; first < source.elements; first += source.piece) {
    const Slot& arrived = *arriving;
    if (first + source.piece < source.elements) arriving = fetch(first + source.piece);
    wait(arrived);
    consume({static_cast<const std::byte*>(arrived.memory.view().raw()),
             static_cast<std::size_t>(source.bytes(first))},
            first);
  }
}

void Staging::upload(const Tensor& to, std::span<const std::byte> from) {
  const std::int64_t element_bytes = size_bytes(to.view().dtype());
  if (!context_.phantom()) check_size(std::ssize(from), to);
  upload(whole(to), [&](std::span<std::byte> piece, std::int64_t first) {
    std::memcpy(piece.data(), from.data() + first * element_bytes, piece.size());
  });
}

void Staging::download(std::span<std::byte> to, const Tensor& from) {
  const std::int64_t element_bytes = size_bytes(from.view().dtype());
  if (!context_.phantom()) check_size(std::ssize(to), from);
  download(whole(from), [&](std::span<const std::byte> piece, std::int64_t first) {
    std::memcpy(to.data() + first * element_bytes, piece.data(), piece.size());
  });
}

TensorView Staging::on_host(const Tensor& tensor, std::vector<std::byte>& memory) {
  const TensorView& view = tensor.view();
  if (context_.phantom() || view.elements() == 0) return view;
  if (in_place(tensor)) {
    download(whole(tensor), [](std::span<const std::byte>, std::int64_t) {});  // the host waits
    return view;
  }
  memory.resize(static_cast<std::size_t>(view.bytes()));
  download(memory, tensor);
  return {memory.data(), view.dtype(), view.shape()};
}

void Context::upload(const Tensor& to, std::span<const std::byte> from) {
  Staging(*this, to.view().bytes()).upload(to, from);
}

void Context::download(std::span<std::byte> to, const Tensor& from) {
  Staging(*this, from.view().bytes()).download(to, from);
}

}  // namespace headroom
