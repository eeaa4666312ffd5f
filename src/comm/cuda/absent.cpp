// Messages in a GPU's memory in a build without CUDA.
#include "comm/cuda/messages.h"
#include "comm/cuda/nccl.h"
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
bool Moment::has_come() const {
  return true;
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

void use_gpu(int) {
  fail_absent();
}

std::string nccl_is_missing() {
  return "ranks on GPUs need a build with CUDA; configure with the cuda preset";
}

NcclId make_nccl_id() {
  fail_absent();
}

NcclPair::NcclPair(const NcclId&, bool sends, int gpu, Seconds timeout, const std::function<void()>&)
    : sends_(sends), gpu_(gpu), timeout_(timeout) {
  fail_absent();
}
NcclPair::~NcclPair() = default;
void NcclPair::move(std::byte*, std::int64_t, const Moment&, Moment&) {
  fail_absent();
}
void NcclPair::check_messages() const {}
void NcclPair::abort() noexcept {}

}  // namespace headroom::cuda
