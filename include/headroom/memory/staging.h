// Staging moves data between ordinary host memory and the tensors of a context, wherever these are. Where the
// host reaches a tensor in place, it works on the tensor's own memory. Elsewhere the bytes pass through two
// pieces of the context's host memory: while one is copied, the host works on the other.
//
// The two pieces are taken when a Staging is made and given back when it goes: these are events of the phase,
// so they are rehearsed, and a run that stages where its rehearsal did not departs from it. How many
// transfers go through them is not rehearsed, because that may depend on files. Where the host reaches the
// device's memory the pieces are empty, so a Staging takes no memory there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/memory/context.h"

namespace headroom {

class Staging {
 public:
  static constexpr std::int64_t kPieceBytes = 16 * kMiB;

  // Belongs to the open phase, and has to be destroyed before it ends. A piece has at most kPieceBytes,
  // and at most the bytes of the largest transfer.
  explicit Staging(Context& context, std::int64_t largest_transfer_bytes = kPieceBytes);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Called with one piece after the other, on the calling thread. `first` is the piece's first element,
  // counted from the beginning of the part. The piece may be used until the call returns.
  using Produce = std::function<void(std::span<std::byte> piece, std::int64_t first)>;
  using Consume = std::function<void(std::span<const std::byte> piece, std::int64_t first)>;

  // The part becomes what produce() writes into the pieces. Work that main is given from now on comes after
  // it. Nothing is called on a phantom.
  void upload(const TensorPart& to, const Produce& produce);
  // Calls consume() with the part's bytes as the work that main was given so far leaves them. Nothing is
  // called on a phantom.
  void download(const TensorPart& from, const Consume& consume);

  // Moves a whole dense tensor from or to host memory of the same size.
  void upload(const Tensor& to, std::span<const std::byte> from);
  void download(std::span<std::byte> to, const Tensor& from);
  // Returns a whole dense tensor where the host can read it: the tensor itself where the host reaches it,
  // otherwise a copy in `memory`. A phantom's view has no memory.
  [[nodiscard]] TensorView on_host(const Tensor& tensor, std::vector<std::byte>& memory);

 private:
  struct Slot {
    Tensor memory;  // [piece bytes] u8 on the host
    Ticket copied;  // the last copy from or to it
  };

  // Throws where a side stream may still work on the part.
  void check_order(const TensorPart& part);
  [[nodiscard]] bool in_place(const Tensor& tensor) const;
  // The host waits until main has done everything that it was given.
  void wait_for_main();
  void mark(const Slot& slot);
  void wait(const Slot& slot);
  void copy(const Slot& slot, std::byte* to, const std::byte* from, std::int64_t bytes);
  [[nodiscard]] const Slot& next_slot() { return slots_[turn_++ % slots_.size()]; }

  Context& context_;
  std::int64_t piece_bytes_;
  std::array<Slot, 2> slots_;
  std::size_t turn_ = 0;
};

}  // namespace headroom
