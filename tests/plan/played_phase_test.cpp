// A phase takes as long as its streams, which wait for each other, take together.
#include "headroom/plan/played_phase.h"

#include <gtest/gtest.h>

#include <map>

#include "headroom/memory/context.h"

namespace headroom {
namespace {

// The seconds of a phase of one of two ranks. Work takes as many seconds as it says that it has bytes.
class Played : public testing::Test {
 protected:
  template <class Body>
  double seconds(const Body& body) {
    Context context(DeviceDescription{.name = "made up"}, {.rank = 0, .count = 2});
    context.phase(Phase::step, [&] {
      const Tensor near = context.allocate({.name = "near", .dtype = DType::u8, .shape = {64}});
      const Tensor far = context.allocate({.name = "far", .dtype = DType::u8, .shape = {64}});
      const Tensor host =
          context.allocate({.name = "host", .dtype = DType::u8, .shape = {64}, .space = Space::host});
      context_ = &context;
      near_ = &near;
      far_ = &far;
      host_ = &host;
      body();
    });
    const PlayedPhase played = play_phase(
        context.ledger(), Phase::step, context.work(Phase::step),
        [](const WorkRecord& record) { return record.work.bytes; },
        [&](std::uint32_t stage, double moved) {
          moved_[context.ledger().stage_path(stage).text()] += moved;
        });
    return played.seconds();
  }
  void compute(double seconds) const {
    context_->run(Work{.kernel = "kernel", .bytes = seconds}, [](const Stream&) {});
  }
  // On the stream copy, after what main was given so far: two seconds for each byte.
  [[nodiscard]] Ticket copy(std::int64_t bytes) const {
    context_->wait(StreamId::copy, context_->record(StreamId::main));
    context_->copy(StreamId::copy, {*host_, 0, bytes}, {*near_, 0, bytes});
    return context_->record(StreamId::copy);
  }
  [[nodiscard]] Ticket exchange(std::int64_t begin, std::int64_t bytes) const {
    const std::array sends = {Parcel{1, {*near_, begin, bytes}}};
    const std::array receives = {Parcel{1, {*far_, begin, bytes}}};
    return context_->exchange(sends, receives, {"step"});
  }
  void wait(Ticket ticket) const { context_->wait(StreamId::main, ticket); }
  void free_host(Ticket copied) const {
    wait(copied);
    context_->wait_on_host(copied);
  }

  Context* context_ = nullptr;
  const Tensor* near_ = nullptr;
  const Tensor* far_ = nullptr;
  const Tensor* host_ = nullptr;
  std::map<std::string, double> moved_;  // main's clock, by stage
};

TEST_F(Played, KernelsFollowEachOther) {
  EXPECT_EQ(seconds([&] {
              compute(2);
              compute(3);
            }),
            5);
}

TEST_F(Played, CopiesGoBesideKernels) {
  for (const double kernels : {3.0, 12.0}) {
    EXPECT_EQ(seconds([&] {
                compute(kernels);
                free_host(copy(4));
              }),
              std::max(8.0, kernels));
  }
}

TEST_F(Played, AnExchangeThatIsWaitedForAtOnceHidesNothing) {
  EXPECT_EQ(seconds([&] {
              wait(exchange(0, 5));
              compute(3);
            }),
            8);
}

TEST_F(Played, MessagesLeaveOneAfterAnother) {
  EXPECT_EQ(seconds([&] {
              const Ticket first = exchange(0, 5);
              compute(1);
              const Ticket second = exchange(8, 4);  // from 5 to 9
              wait(first);
              compute(2);
              wait(second);
            }),
            9);
}

TEST_F(Played, ASumFollowsTheMessagesUnderWay) {
  EXPECT_EQ(seconds([&] {
              const Tensor values = context_->allocate({.name = "values", .shape = {2}});
              const Ticket under_way = exchange(0, 5);
              compute(1);
              context_->all_reduce(values);  // 8 bytes, from 5 to 13
              wait(under_way);
              compute(1);
            }),
            14);
}

TEST_F(Played, AWaitBelongsToItsStage) {
  EXPECT_EQ(seconds([&] {
              Ticket under_way;
              {
                const auto stage = context_->stage(StageKind::forward);
                under_way = exchange(0, 5);
                compute(3);
              }
              const auto stage = context_->stage(StageKind::backward);
              wait(under_way);
              compute(4);
            }),
            9);
  EXPECT_EQ(moved_.at("forward"), 3);
  EXPECT_EQ(moved_.at("backward"), 6);
}

TEST_F(Played, APhaseThatIsNotThereTakesNoTime) {
  EXPECT_EQ(play_phase(Ledger(), Phase::step, {}, [](const WorkRecord&) { return 1.0; }).seconds(), 0);
}

}  // namespace
}  // namespace headroom
