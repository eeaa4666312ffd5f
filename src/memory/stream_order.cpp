#include "headroom/memory/stream_order.h"

#include <algorithm>
#include <functional>

namespace headroom {
namespace {

constexpr std::size_t index(StreamId stream) {
  return static_cast<std::size_t>(stream);
}
constexpr std::size_t kMain = index(StreamId::main);

void learn(StreamTimes& known, const StreamTimes& news) {
  for (std::size_t s = 0; s < kStreamCount; ++s) known[s] = std::max(known[s], news[s]);
}

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
  records_.push_back({stream, known_[index(stream)]});
  return static_cast<std::uint32_t>(records_.size() - 1);
}

void StreamOrder::record_again(std::uint32_t record, StreamId stream) {
  records_[record] = {stream, known_[index(stream)]};
}

void StreamOrder::wait(StreamId waiter, std::uint32_t record) {
  learn(known_[index(waiter)], records_[record].known);
}

void StreamOrder::wait_on_host(std::uint32_t record) {
  learn(known_to_host_, records_[record].known);
}

bool StreamOrder::known_to_main(const Stamp& block) const {
  return std::ranges::equal(block.touched, known_[kMain], std::less_equal{});
}

bool StreamOrder::known_to_host(const Stamp& block) const {
  return std::ranges::equal(block.touched, known_to_host_, std::less_equal{});
}

bool StreamOrder::joined() const {
  return std::ranges::equal(worked_, known_[kMain], std::less_equal{});
}

}  // namespace headroom
