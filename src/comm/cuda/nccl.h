// Messages from one process to another in the memory of GPUs, over NCCL. The library is opened when it is
// first needed, and its few types are written down where they are used, so that a build needs none of its
// files. A build without CUDA has functions that refuse in their place.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/cuda/messages.h"

namespace headroom::cuda {

// Returns why NCCL cannot be used, or nothing where it can.
[[nodiscard]] std::string nccl_is_missing();

// What two ranks have to agree on before they can make a pair.
using NcclId = std::array<std::byte, 128>;
[[nodiscard]] NcclId make_nccl_id();

// The messages of one rank to another: a communicator of the two, used in this direction alone, and a stream
// of its own. Only messages with the same order on both sides share a communicator, so that none can wait for
// one behind it (docs/decisions/0020-ranks-over-nccl.md).
class NcclPair {
 public:
  // Both ranks make it at the same time, on the GPU `gpu`. A first message of no content goes through it, so
  // that later ones wait for no connection. Throws where that takes longer than the timeout. While it waits
  // for the other rank it calls meanwhile(), which may throw to end that.
  NcclPair(const NcclId& id, bool sends, int gpu, Seconds timeout, const std::function<void()>& meanwhile);
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;
  ~NcclPair();

  // Sends or receives the bytes when the stream of `ready` has come to that moment; `done` is the moment when
  // they have moved. Does not wait for either.
  void move(std::byte* data, std::int64_t bytes, const Moment& ready, Moment& done);
  // Throws where NCCL has found, since a message was given to it, that it cannot be moved.
  void check_messages() const;
  // Ends messages that are under way. The pair cannot be used any more.
  void abort() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void start(std::byte* data, std::int64_t bytes, const std::function<void()>& meanwhile);
  void finish_call(int code, const char* call, const std::function<void()>& meanwhile);
  void wait_for_stream(const std::function<void()>& meanwhile);
  [[nodiscard]] Clock::time_point deadline_of_call() const;

  bool sends_;
  int gpu_;
  Seconds timeout_;
  void* communicator_ = nullptr;
  CUstream_st* stream_ = nullptr;
};

}  // namespace headroom::cuda
