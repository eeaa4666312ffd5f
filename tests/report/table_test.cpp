#include <gtest/gtest.h>

#include "headroom/report.h"

namespace headroom {
namespace {

TEST(Table, AlignsTheFirstColumnLeftAndTheOthersRight) {
  Table table({"stage", "bytes"});
  table.add({"forward", "1,024"});
  table.add({"x", ""});
  EXPECT_EQ(table.text(), "stage    bytes\nforward  1,024\nx\n");
}

}  // namespace
}  // namespace headroom
