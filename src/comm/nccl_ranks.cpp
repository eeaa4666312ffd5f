#include "headroom/comm/nccl_ranks.h"

#include <cstdlib>

#include "comm/nccl_messages.h"
#include "headroom/core/error.h"

namespace headroom {

class NcclRanks::Member final : public Communicator {
 public:
  Member(const LaunchedRank& self, int gpu, Seconds timeout)
      : Communicator(timeout), messages_(std::make_unique<NcclMessages>(self, gpu, timeout)) {}

  [[nodiscard]] Ranks ranks() const override { return messages_->ranks(); }
  void progress() override {}  // the thread of the messages makes it
  void abort(std::string_view reason) noexcept override { messages_->abort(reason); }

 private:
  [[nodiscard]] MessageGroup post(std::span<const Send> sends, std::span<const Receive> receives,
                                  const StepLabel& step, const Stream& stream) override {
    return {messages_->start(sends, receives, step, stream)};
  }
  [[nodiscard]] State state(MessageGroup group) override {
    const NcclMessages::Missing missing = messages_->missing(group.number);
    return {.done = missing.count == 0, .peer = missing.peer, .step = missing.step, .left = missing.count};
  }
  void progress_or_sleep(std::chrono::steady_clock::time_point deadline) override {
    messages_->wait_for_change(deadline);
  }
  void settle(MessageGroup group) override { messages_->settle(group.number); }
  void add_on_device(DType dtype, std::span<std::byte> own, const std::byte* others,
                     const Stream& stream) override {
    cuda::add_in_order(dtype, ranks(), own, others, stream);
  }
  void copy_on_device(std::span<std::byte> to, std::span<const std::byte> from,
                      const Stream& stream) override {
    cuda::copy_bytes(to, from, stream);
  }
  [[nodiscard]] int blocked_by(int peer) const override {
    for (int steps = 0; steps < ranks().count && peer != ranks().rank; ++steps) {
      const std::optional<int> next = messages_->ask(peer);
      if (!next || *next < 0) break;
      peer = *next;
    }
    return peer;
  }

  std::unique_ptr<NcclMessages> messages_;
};

std::string NcclRanks::missing() {
  return cuda::nccl_is_missing();
}

// A kernel of NCCL ends only when the other rank's kernel runs too, so nothing may keep that one from
// starting. By default CUDA loads a kernel when it is first launched, and may wait until the GPU is idle for
// that: ranks then wait for each other for ever. And a stream that waits blocks the others in its hardware
// queue. There are 8 queues by default, and 32 at most.
void NcclRanks::set_cuda_variables() {
  constexpr int kKeepWhatIsSet = 0;
  setenv("CUDA_MODULE_LOADING", "EAGER", kKeepWhatIsSet);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeepWhatIsSet);
}

NcclRanks::NcclRanks(const LaunchedRank& self, int gpu, Seconds timeout) {
  const std::string missing = cuda::nccl_is_missing();
  check(missing.empty(), "{}", missing);
  member_ = std::make_unique<Member>(self, gpu, timeout);
}

NcclRanks::~NcclRanks() = default;

Communicator& NcclRanks::communicator() {
  return *member_;
}

}  // namespace headroom
