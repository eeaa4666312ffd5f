#include "train/optimizer_update.h"

#include <algorithm>
#include <array>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

// So many that two of them are little beside what has left the device, so few that a rehearsal stays short.
constexpr std::int64_t kPieces = 64;

// Elements of the flat buffers.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

Piece piece_of(const ParameterTable& table, std::int64_t index) {
  const std::int64_t whole = round_up(divide_up(table.elements(), kPieces), ParameterTable::kAlignment);
  const std::int64_t begin = std::min(index * whole, table.elements());
  return {.begin = begin, .elements = std::min(whole, table.elements() - begin)};
}

// The state of one piece, wherever it is: element 0 is the piece's first.
struct PieceState {
  TensorView master;
  TensorView first_moment;
  TensorView second_moment;
};

void update_piece(Context& context, const OptimizerUpdate& update, const Piece& piece,
                  const PieceState& state) {
  AdamW settings = update.settings;
  for (const Parameter& parameter : update.table.entries()) {
    const std::int64_t begin = std::max(piece.begin, parameter.offset);
    const std::int64_t end =
        std::min(piece.begin + piece.elements, parameter.offset + parameter.shape.elements());
    if (begin >= end) continue;
    const auto of_flat = [&](const TensorView& flat) { return flat.slice(0, begin, end - begin); };
    const auto of_piece = [&](const TensorView& part) {
      return part.slice(0, begin - piece.begin, end - begin);
    };
    const TensorView weight = of_flat(update.weights);
    settings.weight_decay = parameter.decays ? update.settings.weight_decay : 0;
    adamw(context,
          {.master = state.master.elements() > 0 ? of_piece(state.master) : weight,
           .gradient = of_flat(update.gradients),
           .first = of_piece(state.first_moment),
           .second = of_piece(state.second_moment),
           .weight = weight,
           .factor = update.factor},
          settings);
  }
}

// Room on the device for a piece of the state.
class Slot {
 public:
  Slot(Context& context, const ParameterTable& table, const OptimizerState& state)
      : context_(context), state_(state) {
    const auto take = [&](std::string_view name) {
      return context.allocate(
          {.name = name, .category = Category::staging, .shape = {piece_of(table, 0).elements}});
    };
    if (state.master.view().elements() > 0) master_ = take("piece of master weights");
    first_moment_ = take("piece of first moments");
    second_moment_ = take("piece of second moments");
  }

  // The copy stream is in order: what the slot held before has gone back by then.
  void fetch(const Piece& piece) {
    piece_ = piece;
    for_each([&](const TensorPart& device, const TensorPart& host) {
      context_.copy(StreamId::copy, device, host);
    });
    arrived_ = context_.record(StreamId::copy);
  }

  void update(const OptimizerUpdate& update) {
    context_.wait(StreamId::main, arrived_);
    update_piece(context_, update, piece_,
                 {.master = master_, .first_moment = first_moment_, .second_moment = second_moment_});
  }

  void send_back() {
    context_.wait(StreamId::copy, context_.record(StreamId::main));
    for_each([&](const TensorPart& device, const TensorPart& host) {
      context_.copy(StreamId::copy, host, device);
    });
  }

 private:
  template <class Body>
  void for_each(const Body& body) const {
    const auto one = [&](const Tensor& device, const Tensor& host) {
      if (host.view().elements() == 0) return;
      body(TensorPart{device, 0, piece_.elements}, TensorPart{host, piece_.begin, piece_.elements});
    };
    one(master_, state_.master);
    one(first_moment_, state_.first_moment);
    one(second_moment_, state_.second_moment);
  }

  Context& context_;
  const OptimizerState& state_;
  Tensor master_, first_moment_, second_moment_;
  Piece piece_;
  Ticket arrived_;
};

}  // namespace

void update_on_device(Context& context, const OptimizerUpdate& update, const OptimizerState& state) {
  update_piece(
      context, update, {.begin = 0, .elements = update.table.elements()},
      {.master = state.master, .first_moment = state.first_moment, .second_moment = state.second_moment});
}

void update_from_host(Context& context, const OptimizerUpdate& update, const OptimizerState& state) {
  std::array slots = {Slot(context, update.table, state), Slot(context, update.table, state)};
  context.wait(StreamId::copy, context.record(StreamId::main));
  Piece next = piece_of(update.table, 0);
  slots[0].fetch(next);
  for (std::int64_t i = 0; next.elements > 0; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i % 2)];
    Slot& other = slots[static_cast<std::size_t>((i + 1) % 2)];
    next = piece_of(update.table, i + 1);
    if (next.elements > 0) other.fetch(next);
    slot.update(update);
    slot.send_back();
  }
  context.wait(StreamId::main, context.record(StreamId::copy));
}

}  // namespace headroom
