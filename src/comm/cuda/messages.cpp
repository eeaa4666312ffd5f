#include "comm/cuda/messages.h"

#include <algorithm>
#include <utility>

#include "comm/cuda/on_gpu.h"
#include "cuda/check.h"
#include "headroom/core/error.h"

namespace headroom::cuda {
namespace {

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native);
}

void make(CUevent_st*& event) {
  if (event != nullptr) return;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

}  // namespace

Moment::~Moment() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void Moment::record(const Stream& stream) {
  record_on(native(stream));
}

void Moment::record_on(CUstream_st* stream) {
  make(event_);
  check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
}

bool Moment::has_come() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  check_cuda(code, "cudaEventQuery");
  return true;
}

void Moment::hold(const Stream& stream) const {
  check_cuda(cudaStreamWaitEvent(native(stream), event_, 0), "cudaStreamWaitEvent");
}

MessageStream::~MessageStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void MessageStream::open() {
  const int gpu = current_gpu();
  if (stream_ == nullptr) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    gpu_ = gpu;
  }
  check(gpu == gpu_, "a rank exchanges messages on cuda:{} and on cuda:{}; a rank has one GPU", gpu_, gpu);
}

// Without access from GPU to GPU the driver copies through the host, which is right and slow.
void MessageStream::reach(int gpu) {
  if (gpu == gpu_ || std::ranges::find(reached_, gpu) != reached_.end()) return;
  reached_.push_back(gpu);
  int possible = 0;
  check_cuda(cudaDeviceCanAccessPeer(&possible, gpu_, gpu), "cudaDeviceCanAccessPeer");
  if (possible == 0) return;
  const OnGpu here(gpu_);
  const cudaError_t code = cudaDeviceEnablePeerAccess(gpu, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());  // another rank on this GPU was first
    return;
  }
  check_cuda(code, "cudaDeviceEnablePeerAccess");
}

// Both moments were recorded before this is called, so whatever the copy waits for was given to its stream
// before the copy. That holds for every wait of every stream: none waits for work that comes later, and all
// work ends without the host.
void MessageStream::copy(std::span<std::byte> to, std::span<const std::byte> from,
                         const MessageStream& sender, const Moment& source_ready, const Moment& target_ready,
                         Moment& done) {
  const std::lock_guard lock(mutex_);
  reach(sender.gpu_);
  const OnGpu here(gpu_);
  check_cuda(cudaStreamWaitEvent(stream_, source_ready.event_, 0), "cudaStreamWaitEvent");
  check_cuda(cudaStreamWaitEvent(stream_, target_ready.event_, 0), "cudaStreamWaitEvent");
  check_cuda(sender.gpu_ == gpu_
                 ? cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDeviceToDevice, stream_)
                 : cudaMemcpyPeerAsync(to.data(), gpu_, from.data(), sender.gpu_, to.size(), stream_),
             "cudaMemcpyAsync");
  done.record_on(stream_);
}

void MessageStream::synchronize() noexcept {
  const std::lock_guard lock(mutex_);
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

void use_gpu(int gpu) {
  check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream) {
  check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDeviceToDevice, native(stream)),
             "cudaMemcpyAsync");
}

}  // namespace headroom::cuda
