#include "headroom/memory/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/memory/context.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;

// Two phases, with blocks of a phase and of the run in both spaces; events are counted from 0.
TEST(Lifetimes, AreThoseOfTheEvents) {
  Context context({.name = "made up"});
  const auto take = [&](std::int64_t bytes, Lifetime lifetime, Space space = Space::device) {
    return context.allocate(
        {.name = "block", .dtype = DType::u8, .shape = {bytes}, .space = space, .lifetime = lifetime});
  };
  Tensor weights;
  Tensor staging;
  Tensor moments;
  context.phase(Phase::load, [&] {
    const Tensor before = take(1, Lifetime::phase);   // 0 to 3
    weights = take(20, Lifetime::run);                // 1
    staging = take(300, Lifetime::run, Space::host);  // 2
  });
  context.phase(Phase::step, [&] {
    const auto stage = context.stage(StageKind::forward);       // 4 to 10
    Tensor first = take(4000, Lifetime::phase);                 // 5 to 7
    const Tensor host = take(5, Lifetime::phase, Space::host);  // 6 to 9
    first.free();
    moments = take(60000, Lifetime::run);  // 8
  });
  EXPECT_THAT(
      lifetimes(context.ledger(), Space::device),
      ElementsAre(FieldsAre(0, 3, 1), FieldsAre(1, 11, 20), FieldsAre(5, 7, 4000), FieldsAre(8, 11, 60000)));
  EXPECT_THAT(lifetimes(context.ledger(), Space::host),
              ElementsAre(FieldsAre(2, 11, 300), FieldsAre(6, 9, 5)));
}

}  // namespace
}  // namespace headroom
