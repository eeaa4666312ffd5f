#include "comm/cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <thread>

#include "comm/cuda/on_gpu.h"
#include "cuda/check.h"
#include "headroom/core/error.h"

namespace headroom::cuda {
namespace {

// ncclResult_t and ncclDataType_t, and ncclConfig_t as it was in 2.14; later releases accept that one too.
constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
constexpr int kBytes = 0;
constexpr int kFirstVersion = 21400;
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kFirstVersion;
  int blocking = 0;  // calls return at once, so that a rank which does not answer is noticed
};

class Library {
 public:
  static const Library& get() {
    static const Library library;
    return library;
  }

  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(NcclId*) = nullptr;
  int (*init_rank)(void**, int, NcclId, int, Config*) = nullptr;
  int (*get_async_error)(void*, int*) = nullptr;
  int (*send)(const void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*receive)(void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*abort)(void*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  std::string missing;

 private:
  Library() {
    const char* chosen = std::getenv("HEADROOM_NCCL");
    const char* path = chosen == nullptr || *chosen == '\0' ? "libnccl.so.2" : chosen;
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      missing = fmt::format(
          "ranks on GPUs of several processes need NCCL ({}); install libnccl2, or PyPI's "
          "nvidia-nccl-cu13 and set HEADROOM_NCCL to the path of its libnccl.so.2",
          dlerror());
      return;
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr)
        missing = fmt::format("{} has no {}; NCCL 2.14 or newer is needed", path, symbol);
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(init_rank, "ncclCommInitRankConfig");
    find(get_async_error, "ncclCommGetAsyncError");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(abort, "ncclCommAbort");
    find(error_text, "ncclGetErrorString");
  }
};

const Library& nccl() {
  const Library& library = Library::get();
  if (!library.missing.empty()) fail(ErrorKind::input, "{}", library.missing);
  return library;
}

void check_nccl(int code, const char* call) {
  if (code == kSuccess) return;
  fail(ErrorKind::runtime, "{}: {} (NCCL_DEBUG=WARN in the environment says more)", call,
       nccl().error_text(code));
}

}  // namespace

std::string nccl_is_missing() {
  return Library::get().missing;
}

NcclId make_nccl_id() {
  NcclId id{};
  check_nccl(nccl().get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

NcclPair::NcclPair(const NcclId& id, bool sends, int gpu, Seconds timeout,
                   const std::function<void()>& meanwhile)
    : sends_(sends), gpu_(gpu), timeout_(timeout) {
  const OnGpu here(gpu_);
  try {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    Config config;
    finish_call(nccl().init_rank(&communicator_, 2, id, sends_ ? 0 : 1, &config), "ncclCommInitRankConfig",
                meanwhile);
    void* nothing = nullptr;
    check_cuda(cudaMalloc(&nothing, 1), "cudaMalloc");
    try {
      start(static_cast<std::byte*>(nothing), 1, meanwhile);
      wait_for_stream(meanwhile);
    } catch (...) {
      abort();
      cudaFree(nothing);
      throw;
    }
    check_cuda(cudaFree(nothing), "cudaFree");
  } catch (...) {
    abort();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    throw;
  }
}

NcclPair::~NcclPair() {
  abort();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void NcclPair::move(std::byte* data, std::int64_t bytes, const Moment& ready, Moment& done) {
  const OnGpu here(gpu_);
  check_cuda(cudaStreamWaitEvent(stream_, ready.event_, 0), "cudaStreamWaitEvent");
  start(data, bytes, [] {});
  done.record_on(stream_);
}

void NcclPair::check_messages() const {
  int code = kSuccess;
  check_nccl(nccl().get_async_error(communicator_, &code), "ncclCommGetAsyncError");
  if (code != kInProgress) check_nccl(code, sends_ ? "ncclSend" : "ncclRecv");
}

void NcclPair::start(std::byte* data, std::int64_t bytes, const std::function<void()>& meanwhile) {
  const auto count = static_cast<std::size_t>(bytes);
  if (sends_) {
    finish_call(nccl().send(data, count, kBytes, 1, communicator_, stream_), "ncclSend", meanwhile);
  } else {
    finish_call(nccl().receive(data, count, kBytes, 0, communicator_, stream_), "ncclRecv", meanwhile);
  }
}

// A call that has not failed may still be under way in a thread of NCCL; the next one has to wait for it.
void NcclPair::finish_call(int code, const char* call, const std::function<void()>& meanwhile) {
  const auto deadline = deadline_of_call();
  while (code == kInProgress) {
    if (Clock::now() > deadline) {
      fail(ErrorKind::runtime, "{} did not return within {:g} s", call, timeout_.count());
    }
    meanwhile();
    std::this_thread::yield();
    check_nccl(nccl().get_async_error(communicator_, &code), "ncclCommGetAsyncError");
  }
  check_nccl(code, call);
}

void NcclPair::wait_for_stream(const std::function<void()>& meanwhile) {
  const auto deadline = deadline_of_call();
  while (true) {
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code != cudaErrorNotReady) return check_cuda(code, "cudaStreamQuery");
    if (Clock::now() > deadline) {
      fail(ErrorKind::runtime, "the first message over NCCL did not arrive within {:g} s", timeout_.count());
    }
    meanwhile();
    std::this_thread::yield();
  }
}

NcclPair::Clock::time_point NcclPair::deadline_of_call() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
}

void NcclPair::abort() noexcept {
  if (communicator_ == nullptr) return;
  nccl().abort(communicator_);
  communicator_ = nullptr;
  cudaStreamSynchronize(stream_);
}

}  // namespace headroom::cuda
