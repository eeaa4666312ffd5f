#include "core/control_group.h"

#include <gtest/gtest.h>

#include "core/temporary_folder.h"

namespace headroom {
namespace {

// The kernel's files: which groups the process is in, and what each group allows and uses.
class ControlGroups : public testing::Test {
 protected:
  void group(const std::filesystem::path& path,
             std::initializer_list<std::pair<const char*, const char*>> files) {
    std::filesystem::create_directories(folder_ / "groups" / path);
    for (const auto& [name, text] : files) put(folder_ / "groups" / path / name, text);
  }
  ControlGroupLimits limits(std::string_view memberships) {
    put(folder_ / "memberships", memberships);
    return control_group_limits(folder_ / "groups", folder_ / "memberships");
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(ControlGroups, LimitAndFreeMemoryAreTheLeastOfEveryGroupAround) {
  // The tightest limit is the process's own; the least is free in the group around it, which others fill.
  group("", {{"memory.max", "9000\n"}, {"memory.current", "2000\n"}});
  group("user", {{"memory.max", "8000\n"}, {"memory.current", "7900\n"}});
  group("user/job", {{"memory.max", "1000\n"}, {"memory.current", "400\n"}});
  const ControlGroupLimits found = limits("0::/user/job\n");
  ASSERT_TRUE(found.memory);
  EXPECT_EQ(found.memory->limit_bytes, 1000);
  EXPECT_EQ(found.memory->free_bytes, 100);
  EXPECT_FALSE(found.cores);
}

TEST_F(ControlGroups, TheOrderOfTheGroupsDoesNotMatter) {
  // As above with the least at the root, and in the process's own group.
  group("", {{"memory.max", "9000\n"}, {"memory.current", "8950\n"}});
  group("job", {{"memory.max", "1000\n"}, {"memory.current", "400\n"}});
  EXPECT_EQ(limits("0::/job\n").memory->free_bytes, 50);
  group("", {{"memory.max", "9000\n"}, {"memory.current", "10\n"}});
  EXPECT_EQ(limits("0::/job\n").memory->free_bytes, 600);
}

TEST_F(ControlGroups, UnusedPagesOfFilesAreFree) {
  group("", {{"memory.max", "1000\n"},
             {"memory.current", "900\n"},
             {"memory.stat", "anon 500\nactive_file 100\ninactive_file 300\nslab 7\n"}});
  EXPECT_EQ(limits("0::/\n").memory->free_bytes, 400);
  // More in use than the limit allows is nothing free.
  group("", {{"memory.max", "100\n"}, {"memory.stat", ""}});
  EXPECT_EQ(limits("0::/\n").memory->free_bytes, 0);
}

TEST_F(ControlGroups, AGroupWithoutLimitLimitsNothing) {
  group("", {});
  group("job", {{"memory.max", "max\n"}, {"memory.current", "400\n"}, {"cpu.max", "max 100000\n"}});
  const ControlGroupLimits found = limits("0::/job\n");
  EXPECT_FALSE(found.memory);
  EXPECT_FALSE(found.cores);
}

TEST_F(ControlGroups, CoresAreTheSmallestQuotaRoundedUp) {
  group("", {{"cpu.max", "400000 100000\n"}});
  group("job", {{"cpu.max", "150000 100000\n"}});
  group("job/inner", {{"cpu.max", "300000 100000\n"}});
  EXPECT_EQ(limits("0::/job/inner\n").cores, 2);
}

TEST_F(ControlGroups, VersionOneHasAHierarchyForEachController) {
  group("memory", {{"memory.limit_in_bytes", "9000\n"}, {"memory.usage_in_bytes", "8800\n"}});
  group("memory/a", {{"memory.limit_in_bytes", "5000\n"}, {"memory.usage_in_bytes", "1000\n"}});
  group("cpu/b", {{"cpu.cfs_quota_us", "250000\n"}, {"cpu.cfs_period_us", "100000\n"}});
  const ControlGroupLimits found = limits("4:memory:/a\n3:cpu,cpuacct:/b\n0::/\n");
  ASSERT_TRUE(found.memory);
  EXPECT_EQ(found.memory->limit_bytes, 5000);
  EXPECT_EQ(found.memory->free_bytes, 200);
  EXPECT_EQ(found.cores, 3);
}

}  // namespace
}  // namespace headroom
