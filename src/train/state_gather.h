// Brings flat tensors that ranks divide to rank 0, which writes the checkpoint: one window of a tensor after
// the other, so that no rank holds a whole one. How many windows there are follows from the sizes alone, so
// a rehearsal moves the same ones.
#pragma once

#include <cstdint>
#include <vector>

#include "headroom/memory/context.h"
#include "headroom/memory/staging.h"
#include "headroom/model/shards.h"

namespace headroom {

class StateGather {
 public:
  // `flats` are the rank's parts of the divided tensors, in the order in which rank 0 reads them. A tensor
  // may have one element for so many elements of the flat buffer, as exponents of moments have.
  StateGather(Context& context, const Shards& shards, std::vector<const Tensor*> flats);

  // For rank 0: consume() gets elements begin, begin + 1, ... of the whole tensor. From call to call tensors
  // come in the order that was given, and elements ascend.
  void read(const Tensor& flat, std::int64_t begin, std::int64_t elements, Staging& staging,
            const Staging::Consume& consume);
  // For every rank: moves what has not moved yet.
  void finish();

 private:
  // Elements of the flat buffer for one of the tensor at hand.
  [[nodiscard]] std::int64_t shared() const;
  void next_window();
  void next_tensor();
  // The window's part of so many elements of the flat buffer.
  [[nodiscard]] TensorPart in_window(std::int64_t flat_begin, std::int64_t elements) const;
  // What rank 0 receives for the window.
  [[nodiscard]] std::vector<Parcel> parcels_of_others() const;

  Context& context_;
  const Shards& shards_;
  std::vector<ShardSlice> slices_;  // of this rank
  std::int64_t own_elements_;
  std::vector<const Tensor*> flats_;
  std::size_t current_ = 0;  // of flats_
  Tensor window_;
  std::int64_t begin_ = 0;  // of the window in the flat buffer
  std::int64_t end_ = 0;
};

}  // namespace headroom
