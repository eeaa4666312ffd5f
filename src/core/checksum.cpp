#include "headroom/core/checksum.h"

#include <array>
#include <bit>
#include <cstring>

#include "core/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace headroom {
namespace {

static_assert(std::endian::native == std::endian::little, "bytes enter a CRC word by word, lowest first");

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: what byte b adds to the remainder once k more bytes have followed it.
constexpr std::array<Table, 8> make_tables() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, lowest bit first
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

std::uint64_t read_word(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

#if defined(__x86_64__)
constexpr std::size_t kChainBytes = 4096;

// tables[k][b]: what byte b of a remainder, its k-th, becomes once kChainBytes zeros have followed.
constexpr std::array<Table, 4> make_shift() {
  // bits[b]: what bit b of a remainder becomes, after one zero byte and then after twice as many each time.
  static_assert(std::has_single_bit(kChainBytes));
  std::array<std::uint32_t, 32> bits{};
  for (std::size_t bit = 0; bit < bits.size(); ++bit) {
    const std::uint32_t remainder = std::uint32_t{1} << bit;
    bits[bit] = (remainder >> 8) ^ kTables[0][remainder & 0xFF];
  }
  for (std::size_t zeros = 1; zeros < kChainBytes; zeros *= 2) {
    std::array<std::uint32_t, 32> twice{};
    for (std::size_t bit = 0; bit < bits.size(); ++bit) {
      for (std::size_t part = 0; part < bits.size(); ++part) {
        if ((bits[bit] >> part & 1) != 0) twice[bit] ^= bits[part];
      }
    }
    bits = twice;
  }
  std::array<Table, 4> tables{};
  for (std::size_t k = 0; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) tables[k][byte] ^= bits[8 * k + bit];
      }
    }
  }
  return tables;
}

constexpr std::array<Table, 4> kShift = make_shift();

std::uint64_t shifted(std::uint64_t remainder) {
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < kShift.size(); ++k) sum ^= kShift[k][(remainder >> (8 * k)) & 0xFF];
  return sum;
}

// The instruction takes three cycles and another can begin in each: three chains side by side, whose
// remainders are then put together. With the search for infinities 1 GiB takes 0.09 s so, 0.16 s in one chain
// (EPYC).
__attribute__((target("sse4.2"))) std::uint32_t crc32c_with_instruction(std::span<const std::byte> bytes,
                                                                        std::uint32_t before) {
  std::uint64_t remainder = ~before;
  for (; bytes.size() >= 3 * kChainBytes; bytes = bytes.subspan(3 * kChainBytes)) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kChainBytes; i += 8) {
      remainder = _mm_crc32_u64(remainder, read_word(bytes.data() + i));
      second = _mm_crc32_u64(second, read_word(bytes.data() + kChainBytes + i));
      third = _mm_crc32_u64(third, read_word(bytes.data() + 2 * kChainBytes + i));
    }
    remainder = shifted(shifted(remainder) ^ second) ^ third;
  }
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) remainder = _mm_crc32_u64(remainder, read_word(bytes.data() + i));
  auto rest = static_cast<std::uint32_t>(remainder);
  for (; i < bytes.size(); ++i) rest = _mm_crc32_u8(rest, std::to_integer<std::uint8_t>(bytes[i]));
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_with_tables(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t remainder = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = read_word(bytes.data() + i) ^ remainder;
    remainder = 0;
    for (std::size_t k = 0; k < 8; ++k) remainder ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; i < bytes.size(); ++i) {
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ std::to_integer<std::uint32_t>(bytes[i])) & 0xFF];
  }
  return ~remainder;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_with_instruction(bytes, before);
#endif
  return crc32c_with_tables(bytes, before);
}

}  // namespace headroom
