#include "headroom/memory/stream_order.h"

#include <gtest/gtest.h>

namespace headroom {
namespace {

TEST(StreamOrder, WorkHasToComeAfterTheAllocation) {
  StreamOrder order;
  StreamOrder::Stamp block = order.allocate();
  EXPECT_FALSE(order.touch(block, StreamId::copy));
  const auto early = order.record(StreamId::main);
  StreamOrder::Stamp later = order.allocate();
  order.wait(StreamId::copy, early);
  EXPECT_TRUE(order.touch(block, StreamId::copy));
  EXPECT_FALSE(order.touch(later, StreamId::copy));  // allocated after the record
}

TEST(StreamOrder, FreeHasToComeAfterTheWork) {
  StreamOrder order;
  StreamOrder::Stamp block = order.allocate();
  order.wait(StreamId::copy, order.record(StreamId::main));
  const auto before_work = order.record(StreamId::copy);
  EXPECT_TRUE(order.may_free(block, Space::device));
  EXPECT_TRUE(order.touch(block, StreamId::copy));
  EXPECT_FALSE(order.may_free(block, Space::device));
  EXPECT_FALSE(order.joined());
  order.wait(StreamId::main, before_work);  // a record from before the work does not help
  EXPECT_FALSE(order.may_free(block, Space::device));
  order.wait(StreamId::main, order.record(StreamId::copy));
  EXPECT_TRUE(order.may_free(block, Space::device));
  EXPECT_TRUE(order.joined());
}

TEST(StreamOrder, HostMemoryIsFreeWhenTheHostKnows) {
  StreamOrder order;
  StreamOrder::Stamp block = order.allocate();
  EXPECT_TRUE(order.touch(block, StreamId::main));
  EXPECT_TRUE(order.may_free(block, Space::device));  // main frees it after its own work
  EXPECT_FALSE(order.may_free(block, Space::host));   // the host may be ahead of main
  const auto done = order.record(StreamId::main);
  EXPECT_TRUE(order.touch(block, StreamId::main));
  order.wait_on_host(done);  // a record from before the last work does not help
  EXPECT_FALSE(order.may_free(block, Space::host));
  order.wait_on_host(order.record(StreamId::main));
  EXPECT_TRUE(order.may_free(block, Space::host));
}

TEST(StreamOrder, TheHostLearnsWhatARecordsStreamHasWaitedFor) {
  StreamOrder order;
  StreamOrder::Stamp block = order.allocate();
  order.wait(StreamId::copy, order.record(StreamId::main));
  EXPECT_TRUE(order.touch(block, StreamId::copy));
  const auto before_wait = order.record(StreamId::main);
  order.wait_on_host(before_wait);  // main has not waited for the copy
  EXPECT_FALSE(order.known_to_host(block));
  order.wait(StreamId::main, order.record(StreamId::copy));
  order.record_again(before_wait, StreamId::main);
  order.wait_on_host(before_wait);
  EXPECT_TRUE(order.known_to_host(block));
}

TEST(StreamOrder, OrderPassesThroughAThirdStream) {
  StreamOrder order;
  StreamOrder::Stamp block = order.allocate();
  order.wait(StreamId::copy, order.record(StreamId::main));
  EXPECT_TRUE(order.touch(block, StreamId::copy));
  order.wait(StreamId::communication, order.record(StreamId::copy));
  EXPECT_TRUE(order.touch(block, StreamId::communication));  // it knows main's allocation from copy
  order.wait(StreamId::main, order.record(StreamId::communication));
  EXPECT_TRUE(order.may_free(block, Space::device));
}

}  // namespace
}  // namespace headroom
