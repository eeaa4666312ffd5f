// What moves in a ring. KeyExchange brings K and V to their readers, GradientExchange brings what readers add
// to dK and dV back to their owners. Both take their buffers when they are made. A rank goes through the
// slots in order; the exchange of a slot is under way while the slot before it is computed.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "parallel/transfer_rows.h"

namespace headroom {

// K and V, or their gradients: [batch, keys, heads_kv, head_dim].
struct KeyValueViews {
  TensorView key;
  TensorView value;
};

// The place of a Context's rank in one of several rings that run side by side.
struct RingPlace {
  int member = 0;  // of the ring
  int ring = 0;
  int rings = 1;
  int first = 0;  // the rank of member 0 of ring 0

  // The Context's rank of a member.
  [[nodiscard]] int rank_of(int other) const { return first + other * rings + ring; }
};

// Where a rank's tensors have the rows of a transfer, all of which are in one of its pieces.
[[nodiscard]] std::int64_t local_row(const Partition& partition, int rank, std::int64_t position);

// Memory for a transfer of K and V side by side, for one of any size up to the largest.
class TransferBuffer {
 public:
  TransferBuffer(Context& context, std::string_view name, DType dtype, std::int64_t elements);

  // The first 2 x [batch, keys, heads_kv, head_dim] of the buffer.
  [[nodiscard]] KeyValueViews views(const AttentionProblem& problem, const Transfer& transfer) const;
  // The first 2 x [rows sent, head_dim] of it.
  [[nodiscard]] KeyValueViews packed(const AttentionProblem& problem, const Transfer& transfer) const;
  [[nodiscard]] TensorPart part(std::int64_t elements, std::int64_t begin = 0) const {
    return {tensor_, begin, elements};
  }

 private:
  Tensor tensor_;
};

class KeyExchange {
 public:
  KeyExchange(Context& context, const RingSchedule& schedule, const RingPlace& place, const Tensor& key,
              const Tensor& value);

  // Starts what the rank sends and receives for a slot.
  void start(std::int64_t slot);
  // Returns the K and V that the rank received for a slot, in the rows of transfer.keys. The next slot may be
  // started from then on.
  [[nodiscard]] KeyValueViews receive(const Transfer& transfer);
  // Waits until everything was sent.
  void finish();

 private:
  void send(const Transfer& transfer);

  Context& context_;
  const RingSchedule& schedule_;
  RingPlace place_;
  const Tensor& key_;
  const Tensor& value_;
  // Without packing, two buffers that K and V arrive in by turns. With packing, one that they are unpacked
  // into, one that arrives and one that is sent.
  std::vector<TransferBuffer> buffers_;
  std::optional<Ticket> arriving_;
  std::optional<Ticket> sending_;  // the last; to wait for it is to wait for those before it
};

class GradientExchange {
 public:
  // Sums are the rank's own dK and dV, to which what others send is added.
  GradientExchange(Context& context, const RingSchedule& schedule, const RingPlace& place,
                   const KeyValueViews& sums);

  // Returns zeros, to which the reader adds the gradients of a transfer.
  [[nodiscard]] KeyValueViews begin(const Transfer& transfer);
  // Sends what the rank computed in a slot, adds what arrived for the slot before, and starts to receive what
  // its reader computes in this slot.
  void end(std::int64_t slot);
  // Adds what arrives last, and waits until everything was sent.
  void finish();

 private:
  void send(const Transfer& transfer);
  void add_arrived();

  Context& context_;
  const RingSchedule& schedule_;
  RingPlace place_;
  KeyValueViews sums_;
  // Without packing, two that gradients are computed in and sent from by turns, and one that arrives. With
  // packing, one that they are computed in, one that is sent and one that arrives.
  std::vector<TransferBuffer> buffers_;
  std::array<std::optional<Ticket>, 2> sending_;  // by slot, modulo 2
  std::optional<Ticket> arriving_;
  const Transfer* arrives_ = nullptr;
};

}  // namespace headroom
