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

TEST(Table, CsvQuotesAndMarkdownRules) {
  Table table({"stage", "bytes"});
  table.add({"a \"b\"", "1,024"});
  EXPECT_EQ(table.csv(), "stage,bytes\n\"a \"\"b\"\"\",\"1,024\"\n");
  Table lines({"name"});
  lines.add({"two\nlines"});
  lines.add({"plain; text"});
  EXPECT_EQ(lines.csv(), "name\n\"two\nlines\"\nplain; text\n");
  EXPECT_EQ(table.markdown(), "| stage | bytes |\n|:--|--:|\n| a \"b\" | 1,024 |\n");
}

}  // namespace
}  // namespace headroom
