// Messages between ranks in the memory of GPUs. A message is a copy on a stream of its own, ordered by the
// driver's events, so that no host thread waits while kernels run. A build without CUDA has functions that
// refuse in their place.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "headroom/memory/communicator.h"

struct CUstream_st;  // the driver's types without its headers
struct CUevent_st;

namespace headroom::cuda {

// A moment of a stream. The driver's event is made by the first record, on the GPU that is current then, and
// is used again. To record it again changes nothing for those who were told to wait for it before.
class Moment {
 public:
  Moment() = default;
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;
  ~Moment();

  // The GPU that the stream belongs to has to be current the first time.
  void record(const Stream& stream);
  // What the stream is given from now on comes after the moment.
  void hold(const Stream& stream) const;
  // Whether the stream has come to it.
  [[nodiscard]] bool has_come() const;

 private:
  friend class MessageStream;
  friend class NcclPair;
  void record_on(CUstream_st* stream);

  CUevent_st* event_ = nullptr;
};

// The stream on which a rank's messages arrive. Any thread may give it a copy.
class MessageStream {
 public:
  MessageStream() = default;
  MessageStream(const MessageStream&) = delete;
  MessageStream& operator=(const MessageStream&) = delete;
  ~MessageStream();

  // Makes the stream on the current GPU, once. Throws where it was made on another one.
  void open();
  // to <- from, when both sides have come to their moment; `done` is the moment when it is there. The bytes
  // to read are on the GPU of the sender's stream.
  void copy(std::span<std::byte> to, std::span<const std::byte> from, const MessageStream& sender,
            const Moment& source_ready, const Moment& target_ready, Moment& done);
  // Returns when every copy is done.
  void synchronize() noexcept;

 private:
  void reach(int gpu);

  std::mutex mutex_;
  CUstream_st* stream_ = nullptr;
  int gpu_ = -1;
  std::vector<int> reached_;  // GPUs whose memory copies read without a way through the host, where they can
};

// The GPU of the calls that this thread makes from now on.
void use_gpu(int gpu);

// to <- from in a GPU's memory.
void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, const Stream& stream);

// own <- the parts of all ranks, added in their order; those of the others follow each other. f32 and f64 are
// added as they are, bf16 in f32, rounded once.
void add_in_order(DType dtype, const Ranks& ranks, std::span<std::byte> own, const std::byte* others,
                  const Stream& stream);

}  // namespace headroom::cuda
