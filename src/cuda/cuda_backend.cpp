#include "cuda/cuda_backend.h"

#include "cuda/check.h"
#include "cuda/vendor_libraries.h"
#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

// The n-th event, made where it does not exist.
CUevent_st* event(std::vector<CUevent_st*>& events, std::uint32_t number, unsigned flags) {
  while (events.size() <= number) {
    check_cuda(cudaEventCreateWithFlags(&events.emplace_back(nullptr), flags), "cudaEventCreateWithFlags");
  }
  return events[number];
}

}  // namespace

CudaBackend::CudaBackend(int index) : index_(index), description_(describe_cuda(index)) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  libraries_ = std::make_unique<VendorLibraries>();
  for (CUstream_st*& stream : streams_) {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
}

CudaBackend::~CudaBackend() {
  for (CUevent_st* event : records_) cudaEventDestroy(event);
  for (CUevent_st* event : marks_) cudaEventDestroy(event);
  for (CUstream_st* stream : streams_) cudaStreamDestroy(stream);
}

void* CudaBackend::reserve_memory(Space space, std::int64_t bytes) {
  check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  void* data = nullptr;
  if (space == Space::host) {
    check_free(host_memory(), bytes, "the host");
    check_cuda(cudaMallocHost(&data, static_cast<std::size_t>(bytes)), "cudaMallocHost");
    return data;
  }
  const MemoryStatus memory = cuda_memory(index_);
  check_free(memory, bytes, to_string(device()));
  const cudaError_t code = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // it is told here
    fail(ErrorKind::memory,
         "cudaMalloc gives no {} ({} bytes) in one piece of the {} that are free on {}; {}",
         format_bytes(bytes), format_count(bytes), format_bytes(memory.free_bytes), to_string(device()),
         describe_holders(memory));
  }
  check_cuda(code, "cudaMalloc");
  return data;
}

void CudaBackend::release_memory(Space space, void* data, std::int64_t) noexcept {
  static_cast<void>(space == Space::host ? cudaFreeHost(data) : cudaFree(data));
}

Stream CudaBackend::stream(StreamId id) {
  // Whoever asks is about to launch: on this device, whichever was current before.
  check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  return {.device = &description_,
          .pool = nullptr,
          .poll = {},
          .native = streams_[static_cast<std::size_t>(id)],
          .libraries = libraries_.get()};
}

void CudaBackend::submit(StreamId id, const Task& task) {
  task(stream(id));
}

void CudaBackend::copy(StreamId id, void* to, const void* from, std::int64_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                             streams_[static_cast<std::size_t>(id)]),
             "cudaMemcpyAsync");
}

void CudaBackend::fill(StreamId id, void* data, std::uint8_t value, std::int64_t bytes) {
  check_cuda(
      cudaMemsetAsync(data, value, static_cast<std::size_t>(bytes), streams_[static_cast<std::size_t>(id)]),
      "cudaMemsetAsync");
}

void CudaBackend::record(StreamId id, std::uint32_t number) {
  check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  check_cuda(cudaEventRecord(event(records_, number, cudaEventDisableTiming),
                             streams_[static_cast<std::size_t>(id)]),
             "cudaEventRecord");
}

void CudaBackend::wait(StreamId waiter, std::uint32_t number) {
  check_cuda(cudaStreamWaitEvent(streams_[static_cast<std::size_t>(waiter)], records_.at(number), 0),
             "cudaStreamWaitEvent");
}

void CudaBackend::wait_on_host(std::uint32_t number) {
  check_cuda(cudaEventSynchronize(records_.at(number)), "cudaEventSynchronize");
}

void CudaBackend::synchronize() {
  cudaError_t first_failure = cudaSuccess;
  for (CUstream_st* stream : streams_) {
    const cudaError_t code = cudaStreamSynchronize(stream);
    if (first_failure == cudaSuccess) first_failure = code;
  }
  check_cuda(first_failure, "cudaStreamSynchronize");
}

void CudaBackend::mark(std::uint32_t number) {
  check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  check_cuda(cudaEventRecord(event(marks_, number, cudaEventDefault), streams_[0]), "cudaEventRecord");
}

double CudaBackend::seconds_between(std::uint32_t from, std::uint32_t to) {
  check_cuda(cudaEventSynchronize(marks_.at(to)), "cudaEventSynchronize");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, marks_.at(from), marks_.at(to)), "cudaEventElapsedTime");
  return double{milliseconds} / 1e3;
}

}  // namespace headroom
