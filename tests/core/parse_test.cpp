#include "headroom/core/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>

#include "headroom/core/error.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The message of the Error that a call throws; empty where it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return {};
}

TEST(Parse, WholeNumbersAreDigits) {
  EXPECT_EQ(parse_whole("n", "0", 0), 0);
  EXPECT_EQ(parse_whole("n", "7", 7, 7), 7);
  EXPECT_EQ(parse_whole("n", "4096", 1), 4096);
  EXPECT_EQ(parse_whole("n", "9223372036854775807", 0), kMostWhole);
  for (const char* text :
       {"", "010", "00", "0x10", "+5", "-5", " 5", "5 ", "5\n", "5.0", "5e3", "1_000", "1,000", "five", "nan",
        "9223372036854775808", "99999999999999999999", "٣", "5\t"}) {
    const std::string message = refusal([&] { return parse_whole("--n", text, 0); });
    EXPECT_THAT(message, testing::StartsWith("--n '")) << text;
    EXPECT_THAT(message, HasSubstr("a whole number from 0 to 9223372036854775807")) << text;
  }
  EXPECT_THAT(refusal([] { return parse_whole("--n", "0", 1, 4); }),
              HasSubstr("'0' has to be a whole number from 1 to 4"));
  EXPECT_THAT(refusal([] { return parse_whole("--n", "5", 1, 4); }), HasSubstr("from 1 to 4"));
}

TEST(Parse, SeedsReachTo64Bits) {
  EXPECT_EQ(parse_seed("seed", "0"), 0U);
  EXPECT_EQ(parse_seed("seed", "18446744073709551615"), 18446744073709551615U);
  for (const char* text : {"", "-1", "18446744073709551616", "0x1", "1e5"}) {
    EXPECT_THAT(refusal([&] { return parse_seed("seed", text); }), HasSubstr("to 18446744073709551615"))
        << text;
  }
}

TEST(Parse, NumbersAreDecimalAndFinite) {
  EXPECT_EQ(parse_number("x", "0", {}), 0);
  EXPECT_EQ(parse_number("x", "3", {}), 3);
  EXPECT_EQ(parse_number("x", "0.25", {}), 0.25);
  EXPECT_EQ(parse_number("x", "3e-4", {}), 3e-4);
  EXPECT_EQ(parse_number("x", "1.5E+05", {}), 1.5e5);
  EXPECT_EQ(parse_number("x", "1", {.most = 1}), 1);
  for (const char* text :
       {"",   "nan", "NaN", "inf", "infinity", "-inf", "-1", "-0", "+1", "0x1p3", "010",    "00.5", ".5",
        "5.", "1e",  "1e+", "e5",  "1e5.0",    "1,5",  "1 ", " 1", "1f", "1e999", "1e-999", "one",  "1\n"}) {
    EXPECT_THAT(refusal([&] { return parse_number("--x", text, {.most = 1e6}); }),
                testing::StartsWith("--x '"))
        << text;
  }
  EXPECT_THAT(refusal([] { return parse_number("--x", "2", {.most = 1}); }),
              HasSubstr("a number from 0 to 1"));
  EXPECT_THAT(refusal([] { return parse_number("--x", "0", {.most = 1, .above = true}); }),
              HasSubstr("above 0 and up to 1"));
  EXPECT_TRUE(std::isinf(parse_number("x", "inf", {.or_infinity = true})));
  EXPECT_THAT(refusal([] { return parse_number("--x", "nan", {.or_infinity = true}); }), HasSubstr("or inf"));
}

TEST(Parse, NoLocaleChangesNumbers) {
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8", "C"}) {
    const std::string before = std::setlocale(LC_ALL, nullptr);
    static_cast<void>(std::setlocale(LC_ALL, locale));  // where it is installed
    EXPECT_EQ(parse_number("x", "0.25", {}), 0.25);
    EXPECT_NE(refusal([] { return parse_number("x", "0,25", {}); }), "");
    std::setlocale(LC_ALL, before.c_str());
  }
}

TEST(Parse, TimesHaveAUnit) {
  EXPECT_EQ(parse_seconds("x", "20s", {}), 20);
  EXPECT_EQ(parse_seconds("x", "5us", {}), 5e-6);
  EXPECT_EQ(parse_seconds("x", "0.5ms", {}), 5e-4);
  EXPECT_EQ(parse_seconds("x", "100ns", {}), 1e-7);
  EXPECT_EQ(parse_seconds("x", "1.5min", {}), 90);
  EXPECT_EQ(parse_seconds("x", "2h", {}), 7200);
  EXPECT_EQ(parse_seconds("x", "0s", {}), 0);
  for (const char* text : {"", "20", "s", "20 s", "20S", "20sec", "-1s", "+1s", "1e3s", "05s", "5.s", ".5s",
                           "1.2.3s", "inf", "nan", "9999999h", "20s "}) {
    EXPECT_THAT(refusal([&] { return parse_seconds("--x", text, {}); }), testing::StartsWith("--x '"))
        << text;
  }
  EXPECT_THAT(refusal([] { return parse_seconds("--x", "0s", {.most = 60, .above = true}); }),
              HasSubstr("a time above 0 s and up to 60 s"));
}

TEST(Parse, ListsHaveNoEmptyParts) {
  EXPECT_THAT(parse_list("list", "64"), ElementsAre("64"));
  EXPECT_THAT(parse_list("list", "64,128"), ElementsAre("64", "128"));
  EXPECT_THAT(parse_list("list", "a+b,c", '+'), ElementsAre("a", "b,c"));
  for (const char* text : {"", ",", "64,,128", ",64", "64,"}) {
    EXPECT_THAT(refusal([&] { return parse_list("--list", text); }), HasSubstr("--list has an empty part"))
        << text;
  }
}

}  // namespace
}  // namespace headroom
