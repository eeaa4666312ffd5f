#include "headroom/core/kernel_family.h"

#include <gtest/gtest.h>

#include <array>

namespace headroom {
namespace {

struct Problem {
  std::int64_t size = 0;
};
struct Views {};
using Row = Implementation<Problem, Views, Views>;

Support small_only(const Problem& problem, const DeviceDescription&) {
  return problem.size <= 10 ? Support::yes() : Support::no(fmt::format("size {} is over 10", problem.size));
}
Support gpu_only(const Problem&, const DeviceDescription& device) {
  return device.kind == DeviceKind::cuda ? Support::yes() : Support::no("needs a GPU");
}
Support always(const Problem&, const DeviceDescription&) {
  return Support::yes();
}

constexpr std::array kTable = {Row{"gpu", gpu_only, nullptr, nullptr, nullptr, nullptr},
                               Row{"small", small_only, nullptr, nullptr, nullptr, nullptr},
                               Row{"reference", always, nullptr, nullptr, nullptr, nullptr}};

TEST(KernelFamily, PicksTheFirstThatServes) {
  const std::span<const Row> table(kTable);
  const DeviceDescription cpu;
  const DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up"};
  EXPECT_EQ(choose(table, Problem{5}, gpu).implementation->name, "gpu");
  EXPECT_EQ(choose(table, Problem{5}, cpu).implementation->name, "small");
  const auto choice = choose(table, Problem{11}, cpu);
  EXPECT_EQ(choice.implementation->name, "reference");
  ASSERT_EQ(choice.refusals.size(), 2U);
  EXPECT_EQ(choice.refusals[0].reason, "needs a GPU");
  EXPECT_EQ(choice.refusals[1].reason, "size 11 is over 10");
}

TEST(KernelFamily, APinnedNameIsAskedAlone) {
  const std::span<const Row> table(kTable);
  const DeviceDescription cpu;
  EXPECT_EQ(choose(table, Problem{5}, cpu, "reference").implementation->name, "reference");
  const auto refused = choose(table, Problem{5}, cpu, "gpu");
  EXPECT_EQ(refused.implementation, nullptr);
  EXPECT_EQ(refused.refusals.at(0).reason, "needs a GPU");
  try {
    static_cast<void>(choose(table, Problem{5}, cpu, "fastest"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "implementation 'fastest' is unknown; there are gpu, small, reference");
  }
}

TEST(KernelFamily, SomeRunOnlyWhereTheyAreNamed) {
  const std::array rows = {Row{"rough", always, nullptr, nullptr, nullptr, nullptr, true},
                           Row{"reference", always, nullptr, nullptr, nullptr, nullptr}};
  const std::span<const Row> table(rows);
  const auto choice = choose(table, Problem{5}, DeviceDescription{});
  EXPECT_EQ(choice.implementation->name, "reference");
  EXPECT_EQ(choice.refusals.at(0).reason, "runs only where it is named");
  EXPECT_EQ(choose(table, Problem{5}, DeviceDescription{}, "rough").implementation->name, "rough");
}

}  // namespace
}  // namespace headroom
