#include "train/optimizer_update.h"

#include <algorithm>
#include <array>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

// So many that two of them are little beside what has left the device, so few that a rehearsal stays short.
constexpr std::int64_t kPieces = 64;

// Elements of the buffers that are updated.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

Piece piece_of(const OptimizerUpdate& update, std::int64_t index) {
  const std::int64_t whole = round_up(divide_up(update.elements(), kPieces), ParameterTable::kAlignment);
  const std::int64_t begin = std::min(index * whole, update.elements());
  return {.begin = begin, .elements = std::min(whole, update.elements() - begin)};
}

// Its part of a buffer of the state, of which a moment's block shares an exponent.
Piece part_of(const Piece& piece, const OptimizerUpdate& update, const TensorView& buffer) {
  const std::int64_t shared = update.elements() / buffer.elements();
  return {.begin = piece.begin / shared, .elements = piece.elements / shared};
}

// The state of one piece, wherever it is: element 0 is the piece's first.
struct PieceState {
  TensorView master;
  TensorView first_moment;
  TensorView second_moment;
  TensorView first_exponents;
  TensorView second_exponents;
};

static_assert(ParameterTable::kAlignment % kMomentBlock == 0, "a block of moments is inside one parameter");

// A part of one parameter: `begin` is its first element in the buffers that are updated, `flat_begin` in the
// flat buffers of the table.
void update_part(Context& context, const OptimizerUpdate& update, const Parameter& parameter,
                 std::int64_t begin, std::int64_t flat_begin, std::int64_t elements, const Piece& piece,
                 const PieceState& state) {
  AdamW settings = update.settings;
  settings.weight_decay = parameter.decays ? update.settings.weight_decay : 0;
  const auto of_piece = [&](const TensorView& part) { return part.slice(0, begin - piece.begin, elements); };
  const auto blocks_of_piece = [&](const TensorView& part) {
    if (part.elements() == 0) return part;
    return part.slice(0, (begin - piece.begin) / kMomentBlock, divide_up(elements, kMomentBlock));
  };
  const TensorView weight = update.weights.slice(0, begin, elements);
  const TensorView gradient = update.gradients.slice(0, begin, elements);
  if (state.first_moment.dtype() == DType::f32) {
    adamw(context,
          {.master = state.master.elements() > 0 ? of_piece(state.master) : weight,
           .gradient = gradient,
           .first = of_piece(state.first_moment),
           .second = of_piece(state.second_moment),
           .weight = weight,
           .factor = update.factor},
          settings);
  } else {
    adamw_narrow(context,
                 {.weight = weight,
                  .gradient = gradient,
                  .first = of_piece(state.first_moment),
                  .second = of_piece(state.second_moment),
                  .first_exponents = blocks_of_piece(state.first_exponents),
                  .second_exponents = blocks_of_piece(state.second_exponents),
                  .factor = update.factor},
                 settings, flat_begin);
  }
}

void update_piece(Context& context, const OptimizerUpdate& update, const Piece& piece,
                  const PieceState& state) {
  for (const ShardSlice& slice : update.slices) {
    const std::int64_t begin = std::max(piece.begin, slice.own_begin);
    const std::int64_t end = std::min(piece.begin + piece.elements, slice.own_begin + slice.elements);
    const std::int64_t to_flat = slice.flat_begin - slice.own_begin;
    for (const Parameter& parameter : update.table.entries()) {
      const std::int64_t first = std::max(begin + to_flat, parameter.offset);
      const std::int64_t last = std::min(end + to_flat, parameter.offset + parameter.shape.elements());
      if (first >= last) continue;
      update_part(context, update, parameter, first - to_flat, first, last - first, piece, state);
    }
  }
}

// Room on the device for a piece of the state.
class Slot {
 public:
  Slot(Context& context, const OptimizerUpdate& update, const TrainBuffers& state)
      : context_(context), update_(update), state_(state) {
    const auto take = [&](const TensorView& flat, std::string_view name) -> Tensor {
      if (flat.elements() == 0) return {};
      return context.allocate({.name = name,
                               .category = Category::staging,
                               .dtype = flat.dtype(),
                               .shape = {part_of(piece_of(update, 0), update, flat).elements}});
    };
    master_ = take(state.master, "piece of master weights");
    first_moment_ = take(state.first_moment, "piece of first moments");
    second_moment_ = take(state.second_moment, "piece of second moments");
    first_exponents_ = take(state.first_exponents, "piece of first moments");
    second_exponents_ = take(state.second_exponents, "piece of second moments");
  }

  // The copy stream is in order: what the slot held before has gone back by then.
  void fetch(const Piece& piece) {
    piece_ = piece;
    for_each([&](const TensorPart& device, const TensorPart& host) {
      context_.copy(StreamId::copy, device, host);
    });
    arrived_ = context_.record(StreamId::copy);
  }

  void update() {
    context_.wait(StreamId::main, arrived_);
    update_piece(context_, update_, piece_,
                 {.master = master_,
                  .first_moment = first_moment_,
                  .second_moment = second_moment_,
                  .first_exponents = first_exponents_,
                  .second_exponents = second_exponents_});
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
      const Piece part = part_of(piece_, update_, host);
      body(TensorPart{device, 0, part.elements}, TensorPart{host, part.begin, part.elements});
    };
    one(master_, state_.master);
    one(first_moment_, state_.first_moment);
    one(second_moment_, state_.second_moment);
    one(first_exponents_, state_.first_exponents);
    one(second_exponents_, state_.second_exponents);
  }

  Context& context_;
  const OptimizerUpdate& update_;
  const TrainBuffers& state_;
  Tensor master_, first_moment_, second_moment_, first_exponents_, second_exponents_;
  Piece piece_;
  Ticket arrived_;
};

}  // namespace

void update_on_device(Context& context, const OptimizerUpdate& update, const TrainBuffers& state) {
  update_piece(context, update, {.begin = 0, .elements = update.elements()},
               {.master = state.master,
                .first_moment = state.first_moment,
                .second_moment = state.second_moment,
                .first_exponents = state.first_exponents,
                .second_exponents = state.second_exponents});
}

void update_from_host(Context& context, const OptimizerUpdate& update, const TrainBuffers& state) {
  std::array slots = {Slot(context, update, state), Slot(context, update, state)};
  context.wait(StreamId::copy, context.record(StreamId::main));
  Piece next = piece_of(update, 0);
  slots[0].fetch(next);
  for (std::int64_t i = 0; next.elements > 0; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i % 2)];
    Slot& other = slots[static_cast<std::size_t>((i + 1) % 2)];
    next = piece_of(update, i + 1);
    if (next.elements > 0) other.fetch(next);
    slot.update();
    slot.send_back();
  }
  context.wait(StreamId::main, context.record(StreamId::copy));
}

}  // namespace headroom
