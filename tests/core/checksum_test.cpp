#include "headroom/core/checksum.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>
#include <vector>

#include "core/crc32c.h"
#include "headroom/core/random.h"

namespace headroom {
namespace {

using Crc = std::uint32_t (*)(std::span<const std::byte> bytes, std::uint32_t before);
constexpr std::array<Crc, 2> kWays = {crc32c, crc32c_with_tables};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// One bit at a time, as the definition says.
std::uint32_t plain(std::span<const std::byte> bytes) {
  std::uint32_t remainder = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    remainder ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ 0x82F63B78 : remainder >> 1;
    }
  }
  return ~remainder;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  const Random random(7);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(random.bits(i));
  return bytes;
}

TEST(Checksum, HasThePublishedValues) {
  std::array<std::byte, 32> rising{};
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  std::array<std::byte, 32> ones{};
  ones.fill(std::byte{0xFF});
  for (const Crc crc : kWays) {
    EXPECT_EQ(crc({}, 0), 0U);
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xE3069283U);
    // RFC 3720, B.4.
    EXPECT_EQ(crc(std::array<std::byte, 32>{}, 0), 0x8A9136AAU);
    EXPECT_EQ(crc(ones, 0), 0x62A8AB43U);
    EXPECT_EQ(crc(rising, 0), 0x46DD794EU);
  }
}

TEST(Checksum, DoesNotDependOnThePiecesNorOnAlignment) {
  const std::vector<std::byte> bytes = random_bytes(200);
  const std::span all(bytes);
  for (const Crc crc : kWays) {
    for (std::size_t begin = 0; begin < 9; ++begin) {
      for (std::size_t count = 0; count < 40; ++count) {
        EXPECT_EQ(crc(all.subspan(begin, count), 0), plain(all.subspan(begin, count)))
            << begin << " " << count;
      }
    }
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      EXPECT_EQ(crc(all.subspan(cut), crc(all.first(cut), 0)), plain(all)) << cut;
    }
  }
}

// Long enough for chains side by side, and for what is left behind them.
TEST(Checksum, OfLongOnes) {
  const std::vector<std::byte> bytes = random_bytes(100'000);
  const std::span all(bytes);
  for (const Crc crc : kWays) {
    for (const std::size_t count : {12'287, 12'288, 12'289, 24'583, 99'990}) {
      for (const std::size_t begin : {0, 3}) {
        const auto part = all.subspan(begin, count);
        EXPECT_EQ(crc(part, 0), plain(part)) << begin << " " << count;
        EXPECT_EQ(crc(part.subspan(100), crc(part.first(100), 0)), plain(part)) << begin << " " << count;
      }
    }
  }
}

TEST(Checksum, ChangesWithEveryBit) {
  std::vector<std::byte> bytes = random_bytes(67);
  const std::uint32_t before = crc32c(bytes);
  for (std::byte& byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const auto flip = static_cast<std::byte>(1 << bit);
      byte ^= flip;
      EXPECT_NE(crc32c(bytes), before);
      byte ^= flip;
    }
  }
}

}  // namespace
}  // namespace headroom
