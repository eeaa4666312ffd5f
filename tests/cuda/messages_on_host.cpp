// Messages between GPUs that are none: what their streams are given is done at once, so every moment has come
// when it is recorded, and a copy is made when both sides of the message are there.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include "comm/cuda/sums.cu"
#include "parallel/cuda/rows.cu"

namespace headroom::cuda {

Moment::~Moment() = default;
void Moment::record(const Stream&) {}
void Moment::hold(const Stream&) const {}

MessageStream::~MessageStream() = default;
void MessageStream::open() {}
void MessageStream::copy(std::span<std::byte> to, std::span<const std::byte> from, const MessageStream&,
                         const Moment&, const Moment&, Moment&) {
  std::ranges::copy(from, to.begin());
}
void MessageStream::synchronize() noexcept {}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, const Stream&) {
  std::ranges::copy(from, to.begin());
}

}  // namespace headroom::cuda
