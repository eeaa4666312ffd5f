// Messages in a GPU's memory in a build without CUDA.
#include "comm/cuda/messages.h"
#include "headroom/core/error.h"

namespace headroom::cuda {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}

}  // namespace

Moment::~Moment() = default;
void Moment::record(const Stream&) {
  fail_absent();
}
void Moment::hold(const Stream&) const {
  fail_absent();
}

MessageStream::~MessageStream() = default;
void MessageStream::open() {
  fail_absent();
}
void MessageStream::copy(std::span<std::byte>, std::span<const std::byte>, const MessageStream&,
                         const Moment&, const Moment&, Moment&) {
  fail_absent();
}
void MessageStream::synchronize() noexcept {}

void copy_bytes(std::span<std::byte>, std::span<const std::byte>, const Stream&) {
  fail_absent();
}

void add_in_order(DType, const Ranks&, std::span<std::byte>, const std::byte*, const Stream&) {
  fail_absent();
}

}  // namespace headroom::cuda
