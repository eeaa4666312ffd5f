#include "headroom/core/bytes.h"

#include <gtest/gtest.h>

#include <limits>

#include "headroom/core/checked.h"
#include "headroom/core/error.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

TEST(Bytes, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("12B"), 12);
  EXPECT_EQ(parse_bytes("1kB"), 1000);
  EXPECT_EQ(parse_bytes("512MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("80GiB"), 80 * kGiB);
  EXPECT_EQ(parse_bytes("80 GiB"), 80 * kGiB);
  EXPECT_EQ(parse_bytes("37GB"), 37'000'000'000);
  EXPECT_EQ(parse_bytes("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("0.1GB"), 100'000'000);  // exact, though 0.1 is not a binary fraction
  EXPECT_EQ(parse_bytes("0.3KiB"), 307);         // 307.2: the fraction of a byte is dropped
  EXPECT_EQ(parse_bytes("8191PiB"), 8191 * (kGiB << 20));
  EXPECT_EQ(parse_bytes("999999999999999999"), 999'999'999'999'999'999);
}

TEST(Bytes, RefusesTheRestAndNamesIt) {
  for (const char* text : {"",
                           "GiB",
                           "12XB",
                           "-1",
                           "+1",
                           "1e9",
                           "1..5GiB",
                           "1.5.2GiB",
                           ".",
                           "80gib",
                           "80GiBs",
                           "8192PiB",
                           "10000000000000000000",
                           ".7777777777777777777",
                           "0x10",
                           " 1",
                           "1  GiB",
                           "nan",
                           "inf",
                           "1\n",
                           "080GiB",
                           ".5GiB",
                           "1.GiB",
                           "80 ",
                           "80 GiB "}) {
    try {
      static_cast<void>(parse_bytes(text));
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_NE(std::string(error.what()).find(printable(text)), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(static_cast<void>(parse_budget("0")), Error);
  EXPECT_THROW(static_cast<void>(parse_budget("0.1B")), Error);
  EXPECT_EQ(parse_budget("1"), 1);
}

TEST(Bytes, PrintsWhatPeopleRead) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(131072LL * 151936 * 2), "37.09 GiB");  // seed 001's logits
  EXPECT_EQ(format_bytes(-2 * kMiB), "-2 MiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::max()), "8 EiB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-123456), "-123,456");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
  std::string ordinals;
  for (const int number : {0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 21, 22, 23, 101, 111, 112})
    ordinals += format_ordinal(number) + " ";
  EXPECT_EQ(ordinals, "0th 1st 2nd 3rd 4th 10th 11th 12th 13th 14th 21st 22nd 23rd 101st 111th 112th ");
}

TEST(Checked, OverflowIsAnErrorThatNamesBothSides) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_multiply(kMax, 1), kMax);
  EXPECT_EQ(round_up(0, 256), 0);
  EXPECT_EQ(round_up(1, 256), 256);
  EXPECT_EQ(round_up(256, 256), 256);
  EXPECT_EQ(divide_up(7, 3), 3);
  EXPECT_EQ(divide_up(kMax, 2), kMax / 2 + 1);
  EXPECT_THROW(static_cast<void>(checked_add(kMax, 1)), Error);
  EXPECT_THROW(static_cast<void>(round_up(kMax, 256)), Error);
  try {
    static_cast<void>(checked_multiply(std::int64_t{1} << 32, std::int64_t{1} << 31));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "4294967296 x 2147483648 does not fit in 64 bits");
    EXPECT_NE(error.where().line(), 0U);
  }
}

}  // namespace
}  // namespace headroom
