#include "headroom/memory/stream_order.h"

#include <algorithm>
#include <functional>

namespace headroom {
namespace {

constexpr std::size_t index(StreamId stream) {
  return static_cast<std::size_t>(stream);
}
constexpr std::size_t kMain = index(StreamId::main);

}  // namespace

void StreamOrder::reset() {
  known_ = {};
  known_to_host_ = {};
  worked_ = {};
  records_.clear();
}

std::uint32_t StreamOrder::tick(StreamId stream) {
  return ++known_[index(stream)][index(stream)];
}

bool StreamOrder::touch(Stamp& block, StreamId stream) {
  if (known_[index(stream)][kMain] < block.allocated) return false;
  worked_[index(stream)] = block.touched[index(stream)] = tick(stream);
  return true;
}

std::uint32_t StreamOrder::record(StreamId stream) {
  records_.push_back(known_[index(stream)]);
  return static_cast<std::uint32_t>(records_.size() - 1);
}

void StreamOrder::wait(StreamId waiter, std::uint32_t record) {
  StreamTimes& known = known_[index(waiter)];
  for (std::size_t s = 0; s < kStreamCount; ++s) known[s] = std::max(known[s], records_[record][s]);
}

void StreamOrder::synchronize() {
  for (std::size_t s = 0; s < kStreamCount; ++s) known_to_host_[s] = known_[s][s];
}

bool StreamOrder::may_free(const Stamp& block, Space space) const {
  const StreamTimes& known = space == Space::host ? known_to_host_ : known_[kMain];
  return std::ranges::equal(block.touched, known, std::less_equal{});
}

bool StreamOrder::joined() const {
  return std::ranges::equal(worked_, known_[kMain], std::less_equal{});
}

}  // namespace headroom
