// Cases on a device that has memory of its own: what was made on the host is moved there and back.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "headroom/memory/context.h"
#include "headroom/memory/staging.h"

namespace headroom {

// body(moved, stream), where moved(view) is a view's place in the device's memory: buffers go there before it
// and come back after it, canaries and all.
template <class Body>
void with_buffers(Backend& backend, std::span<const std::span<std::byte>> buffers, const Body& body) {
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      std::vector<Tensor> tensors;
      for (const std::span<std::byte> buffer : buffers) {
        tensors.push_back(context.allocate(
            {.name = "buffer", .dtype = DType::u8, .shape = {static_cast<std::int64_t>(buffer.size())}}));
      }
      const auto moved = [&](const TensorView& view) {
        const auto* data = static_cast<const std::byte*>(view.raw());
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          if (data < buffers[i].data() || data >= buffers[i].data() + buffers[i].size()) continue;
          std::array<std::int64_t, kMaxRank> strides{};
          for (int d = 0; d < view.rank(); ++d) strides[static_cast<std::size_t>(d)] = view.stride(d);
          return TensorView(tensors[i].data<std::uint8_t>() + (data - buffers[i].data()), view.dtype(),
                            view.shape(), std::span(strides.data(), static_cast<std::size_t>(view.rank())));
        }
        return TensorView(nullptr, view.dtype(), view.shape());
      };
      Staging staging(context);
      for (std::size_t i = 0; i < buffers.size(); ++i) staging.upload(tensors[i], buffers[i]);
      context.run([&](const Stream& stream) { body(moved, stream); });
      for (std::size_t i = 0; i < buffers.size(); ++i) staging.download(buffers[i], tensors[i]);
    });
  };
  Context rehearsal(backend.description());
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  program(context);
}

}  // namespace headroom
