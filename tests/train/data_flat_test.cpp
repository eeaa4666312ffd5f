#include <gmock/gmock.h>

#include <set>

#include "train/samples.h"

namespace headroom {
namespace {

using testing::HasSubstr;

// Bytes that tell their own place, up to 65,536 of them.
std::string counting(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 2 == 0 ? i / 2 : i / 512);
  return text;
}

TEST(DataFlat, AFileIsWindowsOfBytesWithLabelsOneLater) {
  const Folder folder;
  const std::string text = counting(1000);
  const DataOptions options{.context = 37, .seed = 3, .bytes = true};
  const std::string path = folder.write("book.txt", text);
  const Data data = Data::open(path, options);
  EXPECT_EQ(data.vocab_needed(), 256);
  EXPECT_FALSE(data.documents());
  EXPECT_FALSE(data.floor().has_value());
  EXPECT_EQ(data.samples_per_epoch(), 27);  // 999 / 37
  EXPECT_EQ(data.describe(), fmt::format("file {}, 1,000 bytes as tokens", path));
  for (std::int64_t index = 0; index < 60; ++index) {
    const Sample sample = sample_of(data, options, index);
    std::string window;
    for (const std::int32_t token : sample.tokens) window += static_cast<char>(token);
    window += static_cast<char>(sample.labels.back());
    EXPECT_NE(text.find(window), std::string::npos) << index;
    for (std::size_t i = 0; i < 37; ++i) {
      EXPECT_EQ(sample.positions[i], i);
      if (i > 0) {
        EXPECT_EQ(sample.labels[i - 1], sample.tokens[i]);
      }
      EXPECT_GE(sample.tokens[i], 0);
      EXPECT_LT(sample.tokens[i], 256);
    }
  }
}

std::vector<std::int32_t> first_tokens(const Data& data, const DataOptions& options, std::int64_t epoch) {
  std::vector<std::int32_t> first;
  for (std::int64_t i = 0; i < data.samples_per_epoch().value(); ++i) {
    first.push_back(sample_of(data, options, epoch * data.samples_per_epoch().value() + i).tokens[0]);
  }
  return first;
}

TEST(DataFlat, AnEpochHoldsEveryWindowOnceInAnOrderOfItsOwn) {
  const Folder folder;
  std::vector<std::uint16_t> numbers(10 * 64 + 1);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i);
  const std::string path = folder.write_tokens("numbers.bin", numbers);
  const DataOptions options{.context = 10, .seed = 1};
  const Data data = Data::open(path, options);
  ASSERT_EQ(data.samples_per_epoch(), 64);
  std::set<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<std::int32_t> first = first_tokens(data, options, epoch);
    orders.insert(first);
    const std::set<std::int32_t> different(first.begin(), first.end());
    EXPECT_EQ(different.size(), 64u);
    for (const std::int32_t token : first) EXPECT_EQ(token % 10, 0);  // no token is left over: no other place
  }
  const DataOptions other{.context = 10, .seed = 2};
  orders.insert(first_tokens(Data::open(path, other), other, 0));
  EXPECT_EQ(orders.size(), 4u);
}

TEST(DataFlat, WhatFillsNoWindowIsSeenInSomeEpoch) {
  const Folder folder;
  std::vector<std::uint16_t> numbers(10 * 3 + 8);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i);
  const DataOptions options{.context = 10, .seed = 1};
  const Data data = Data::open(folder.write_tokens("numbers.bin", numbers), options);
  ASSERT_EQ(data.samples_per_epoch(), 3);
  std::set<std::int32_t> seen;
  std::set<std::int32_t> begins;
  for (std::int64_t index = 0; index < 3 * 60; ++index) {
    const Sample sample = sample_of(data, options, index);
    seen.insert(sample.tokens.begin(), sample.tokens.end());
    seen.insert(sample.labels.begin(), sample.labels.end());
    begins.insert(sample.tokens[0] % 10);
  }
  EXPECT_EQ(seen.size(), numbers.size());
  EXPECT_EQ(begins.size(), 8u);  // 0 .. 7
}

TEST(DataFlat, TheShortestFileIsOneWindow) {
  const Folder folder;
  const DataOptions options{.context = 4};
  const std::string path = folder.write("five.txt", "abcde");
  const Data data = Data::open(path, options);
  EXPECT_EQ(data.describe(), fmt::format("text {}, 5 bytes as tokens", path));
  EXPECT_EQ(data.samples_per_epoch(), 1);
  for (std::int64_t index = 0; index < 3; ++index) {
    const Sample sample = sample_of(data, options, index);
    EXPECT_EQ(sample.tokens, (std::vector<std::int32_t>{'a', 'b', 'c', 'd'}));
    EXPECT_EQ(sample.labels, (std::vector<std::int32_t>{'b', 'c', 'd', 'e'}));
  }
}

TEST(DataFlat, BytesAboveAsciiAreNotNegative) {
  const Folder folder;
  const DataOptions options{.context = 1, .bytes = true};
  const Data data = Data::open(folder.write("high.txt", "\xff\xfe"), options);
  EXPECT_EQ(sample_of(data, options, 0).tokens[0], 255);
  EXPECT_EQ(sample_of(data, options, 0).labels[0], 254);
}

TEST(DataFlat, TokensOfSixteenAndThirtyTwoBits) {
  const Folder folder;
  const std::vector<std::uint16_t> narrow = {1, 65'535, 3};
  const std::vector<std::uint32_t> wide = {1, 151'935, 3};
  const std::string narrow_path = folder.write_tokens("narrow.bin", narrow);
  const std::string wide_path = folder.write_tokens("wide.bin", wide);
  const DataOptions options{.context = 2, .vocab = 151'936};
  for (const char* suffix : {"", ":uint16"}) {
    const Data data = Data::open(narrow_path + suffix, options);
    EXPECT_EQ(sample_of(data, options, 0).tokens, (std::vector<std::int32_t>{1, 65'535}));
    EXPECT_EQ(sample_of(data, options, 0).labels, (std::vector<std::int32_t>{65'535, 3}));
    EXPECT_EQ(data.describe(), fmt::format("tokens {}, 3 of 16 bits", narrow_path));
  }
  const Data data = Data::open(wide_path + ":uint32", options);
  EXPECT_EQ(sample_of(data, options, 0).tokens, (std::vector<std::int32_t>{1, 151'935}));
  EXPECT_EQ(data.vocab_needed(), 151'936);
  EXPECT_EQ(Data::open(narrow_path, {.context = 2}).vocab_needed(), 65'536);
}

TEST(DataFlat, ATokenPastTheVocabularyIsNamedWhereItIsRead) {
  const Folder folder;
  std::vector<std::uint32_t> tokens(21, 5);
  tokens[20] = 4'000'000'000;  // a label only
  tokens[3] = 100;
  const std::string spec = folder.write_tokens("tokens.bin", tokens) + ":uint32";
  const DataOptions options{.context = 10, .vocab = 100};
  const Data data = Data::open(spec, options);
  std::set<std::string> messages = {refusal(data, options, 0), refusal(data, options, 1)};
  const std::string path = spec.substr(0, spec.rfind(':'));
  EXPECT_EQ(
      messages,
      (std::set<std::string>{
          fmt::format("token 100 at index 3 of '{}' is not below the vocabulary of 100", path),
          fmt::format("token 4000000000 at index 20 of '{}' is not below the vocabulary of 100", path)}));
}

TEST(DataFlat, FilesThatCannotServeAreRefused) {
  const Folder folder;
  const std::string text = folder.write("ten.txt", "0123456789");
  EXPECT_EQ(refusal(text, {.context = 9}), "");
  EXPECT_THAT(refusal(text, {.context = 10}), HasSubstr("has 10 tokens, a context of 10 needs at least 11"));
  EXPECT_THAT(refusal(folder.write("empty.txt", ""), {.context = 3}), HasSubstr("is empty"));
  EXPECT_THAT(refusal(folder.write("empty.bin", ""), {.context = 3}), HasSubstr("is empty"));
  const std::string odd = folder.write("odd.bin", "0123456789");
  EXPECT_EQ(refusal(odd, {.context = 4, .vocab = 65'536}), "");
  EXPECT_THAT(refusal(odd, {.context = 5}), HasSubstr("has 5 tokens, a context of 5 needs at least 6"));
  EXPECT_THAT(refusal(odd + ":uint32", {.context = 1, .vocab = 9}),
              HasSubstr("has 10 bytes, no multiple of the 4"));
  EXPECT_THAT(refusal(folder.write("odd3.bin", "012"), {.context = 1}), HasSubstr("no multiple of the 2"));
  EXPECT_THAT(refusal(odd + ":uint8", {.context = 1}),
              HasSubstr("token type 'uint8' of data '" + odd + ":uint8' is unknown; use uint16 or uint32"));
  EXPECT_THAT(refusal(folder.write("wide.bin", "01234567") + ":uint32", {.context = 1}),
              HasSubstr("give the vocabulary"));
  EXPECT_THAT(refusal(text, {.context = 3, .vocab = 255}),
              HasSubstr("a vocabulary of 255 is too small for data '" + text + "'; the least is 256"));
}

}  // namespace
}  // namespace headroom
