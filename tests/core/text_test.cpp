#include "headroom/core/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace headroom {
namespace {

TEST(Text, PrintableHasNothingATerminalObeys) {
  EXPECT_EQ(printable("plain 'text' \\ é 漢 🙂 "), "plain 'text' \\ é 漢 🙂 ");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string_view("\0\x1b[31m\x7f", 7)), "\\x00\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // U+009B begins a command, as ESC [ does
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");  // U+2028 ends a line
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc3"), "\\xc3");                    // cut short
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // '/' in two bytes
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable(printable("\x1b\xff")), printable("\x1b\xff"));
}

TEST(Text, QuoteIsShort) {
  EXPECT_EQ(quote(""), "''");
  EXPECT_EQ(quote("causal"), "'causal'");
  EXPECT_EQ(quote(std::string(60, 'x')), fmt::format("'{:x<60}'", ""));
  EXPECT_EQ(quote(std::string(61, 'x')), fmt::format("'{:x<60}...'", ""));
  EXPECT_EQ(quote(fmt::format("{:x<59}éé", "")), fmt::format("'{:x<59}...'", ""));  // not half a letter
}

TEST(Text, ShortenedKeepsBothEnds) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcdefghijklmnop", 11), "abc ... nop");
  EXPECT_EQ(shortened("ééééééééé", 11), "é ... é");
  EXPECT_EQ(shortened(std::string(1000, 'x'), 4).size(), 5U);  // the gap itself
}

}  // namespace
}  // namespace headroom
