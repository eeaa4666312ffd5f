// What moves in a ring. KeyExchange brings K and V to their readers, GradientExchange brings what readers add
// to dK and dV back to their owners. Both take their buffers when they are made. A rank goes through the
// slots in order; the exchanges of the next slots are under way while one is computed.
//
// To wait for an exchange is to wait for those that the rank started before it. No rank waits for ever: what
// it waits for in a slot, it and the others have started in slots before. And the messages from one rank to
// another are started in the same order on both sides.
#pragma once

#include <optional>
#include <vector>

#include "parallel/ring_depth.h"
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
  KeyExchange(Context& context, const RingSchedule& schedule, const RingPlace& place, Pass pass,
              const Tensor& key, const Tensor& value);

  // Starts what the rank sends and receives for the first slots, before it computes anything.
  void start();
  // Returns the K and V that the rank received for a slot, in the rows of transfer.keys, or nothing where it
  // received none, and starts a later slot. They are there until the next slot is received.
  [[nodiscard]] KeyValueViews receive(std::int64_t slot);
  // Waits until everything was sent.
  void finish();

 private:
  void start(std::int64_t slot);
  void send(const Transfer& transfer);
  // Where a slot's transfer arrives.
  [[nodiscard]] TransferBuffer& arrives_in(std::int64_t slot);

  Context& context_;
  const RingSchedule& schedule_;
  RingPlace place_;
  RingDepth depth_;
  const Tensor& key_;
  const Tensor& value_;
  std::vector<TransferBuffer> received_;         // by turns
  std::vector<TransferBuffer> packed_;           // with packing: one that arrives and one that is sent
  std::vector<std::optional<Ticket>> arriving_;  // by slot, modulo their number
  std::optional<Ticket> sending_;                // the last; to wait for it is to wait for those before it
};

class GradientExchange {
 public:
  // Sums are the rank's own dK and dV, to which what others send is added.
  GradientExchange(Context& context, const RingSchedule& schedule, const RingPlace& place,
                   const KeyValueViews& sums);

  // Returns zeros, to which the reader adds the gradients of a transfer.
  [[nodiscard]] KeyValueViews begin(const Transfer& transfer);
  // Sends what the rank computed in a slot, and starts to receive what its reader computes in this slot. What
  // arrived in that buffer before is added first.
  void end(std::int64_t slot);
  // Adds what arrives last, and waits until everything was sent.
  void finish();

 private:
  // Gradients on their way to the rank.
  struct Arrival {
    TransferBuffer buffer;
    const Transfer* transfer = nullptr;
    std::optional<Ticket> ticket{};
  };
  // A buffer that is sent from.
  struct Departure {
    TransferBuffer buffer;
    std::optional<Ticket> ticket{};
  };

  void send(const Transfer& transfer);
  void add_arrived(Arrival& arrival);

  Context& context_;
  const RingSchedule& schedule_;
  RingPlace place_;
  KeyValueViews sums_;
  std::optional<TransferBuffer> unpacked_;  // with packing: what is computed in
  std::vector<Departure> departures_;       // by turns; without packing they are computed in
  std::vector<Arrival> arrivals_;           // by turns
  std::size_t sent_ = 0;                    // transfers
  std::size_t received_ = 0;
};

}  // namespace headroom
