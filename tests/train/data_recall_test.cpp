#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "train/samples.h"

namespace headroom {
namespace {

using testing::HasSubstr;

// Reads a sample as its definition says and finds every answer in the assignments.
void expect_recall(std::string_view spec, std::int64_t keys, std::int64_t values, std::int64_t context) {
  const DataOptions options{.context = context, .seed = 11};
  const Data data = Data::open(spec, options);
  EXPECT_EQ(data.vocab_needed(), keys + values + 1 + keys * values);
  EXPECT_DOUBLE_EQ(data.floor().value(), std::log(static_cast<double>(values)));
  EXPECT_FALSE(data.samples_per_epoch().has_value());
  EXPECT_FALSE(data.documents());
  const std::int64_t assignments = std::max(keys, context / 4);
  for (std::int64_t index = 0; index < 20; ++index) {
    const Sample sample = sample_of(data, options, index);
    std::map<std::int64_t, std::int64_t> value_of;
    for (std::int64_t i = 0; i < context; ++i) {
      const std::int64_t token = sample.tokens[static_cast<std::size_t>(i)];
      const std::int64_t label = sample.labels[static_cast<std::size_t>(i)];
      ASSERT_EQ(sample.positions[static_cast<std::size_t>(i)], i);
      ASSERT_FALSE(token >= keys && token < keys + values) << "an answer stands in the input at " << i;
      if (i < assignments) {
        ASSERT_GT(token, keys + values);
        ASSERT_LT(token, data.vocab_needed());
        const std::int64_t pair = token - (keys + values + 1);
        const auto [known, added] = value_of.insert({pair / values, pair % values});
        ASSERT_EQ(known->second, pair % values) << "key " << pair / values << " has two values";
        ASSERT_EQ(label, kIgnore);
        ASSERT_TRUE(added || i >= keys) << "key " << pair / values << " twice before all were there";
      } else if (i < context / 2) {
        ASSERT_EQ(token, keys + values);
        ASSERT_EQ(label, kIgnore);
      } else {
        ASSERT_GE(token, 0);
        ASSERT_LT(token, keys);
        ASSERT_EQ(label, keys + value_of.at(token));
      }
    }
    ASSERT_EQ(std::ssize(value_of), keys);
  }
}

TEST(DataRecall, EveryAnswerIsAmongTheFirstTokensAndNowhereElse) {
  expect_recall("recall", 4, 4, 512);
  expect_recall("recall:keys=8", 8, 4, 130);
  expect_recall("recall:values=16", 4, 16, 131);
  expect_recall("recall:keys=100,values=3", 100, 3, 400);  // more keys than would fit the first quarter alone
  expect_recall("recall:values=2,keys=5", 5, 2, 10);       // no filler
  expect_recall("recall:keys=1,values=2", 1, 2, 2);
}

TEST(DataRecall, KeysValuesAndPlacesAreUniform) {
  const DataOptions options{.context = 256, .seed = 1};
  const Data data = Data::open("recall:keys=8,values=8", options);
  std::vector<int> asked(8);
  std::vector<int> answers(8);
  std::vector<int> first_key(8);
  std::vector<int> repeated(8);
  std::vector<int> value_of_key_0(8);
  constexpr int kSamples = 2000;
  for (std::int64_t index = 0; index < kSamples; ++index) {
    const Sample sample = sample_of(data, options, index);
    ++first_key[static_cast<std::size_t>((sample.tokens[0] - 17) / 8)];
    ++repeated[static_cast<std::size_t>((sample.tokens[15] - 17) / 8)];
    for (std::size_t i = 0; i < 8; ++i) {
      if ((sample.tokens[i] - 17) / 8 == 0) ++value_of_key_0[static_cast<std::size_t>(sample.tokens[i] - 17)];
    }
    for (std::size_t i = 128; i < 256; ++i) {
      ++asked[static_cast<std::size_t>(sample.tokens[i])];
      ++answers[static_cast<std::size_t>(sample.labels[i] - 8)];
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(asked[i], kSamples * 16, 900);  // about five standard deviations each
    EXPECT_NEAR(answers[i], kSamples * 16, 2700);
    EXPECT_NEAR(first_key[i], kSamples / 8, 75);
    EXPECT_NEAR(repeated[i], kSamples / 8, 75);
    EXPECT_NEAR(value_of_key_0[i], kSamples / 8, 75);
  }
}

TEST(DataRecall, SamplesAndSeedsDiffer) {
  const DataOptions options{.context = 64, .seed = 1};
  const DataOptions other{.context = 64, .seed = 2};
  const Data data = Data::open("recall", options);
  EXPECT_NE(sample_of(data, options, 0), sample_of(data, options, 1));
  EXPECT_NE(sample_of(data, options, 0), sample_of(Data::open("recall", other), other, 0));
  EXPECT_EQ(data.describe(), "recall, 4 keys with one of 4 values each, asked for up to 63 tokens later");
}

TEST(DataRecall, BadOptionsAreRefused) {
  const DataOptions options{.context = 64};
  EXPECT_THAT(refusal("recall:", options), HasSubstr("'recall:' has no options after the colon"));
  for (const char* bad : {"key=8", "keys", "8", "keys=8,", ",keys=8", "keys=8;values=8", "="}) {
    const std::string message = refusal(fmt::format("recall:{}", bad), options);
    EXPECT_THAT(message, HasSubstr(bad));
    EXPECT_THAT(message,
                testing::AnyOf(HasSubstr("write recall:keys=K,values=V"), HasSubstr("has an empty part"),
                               HasSubstr("keys '8;values=8' has to be a whole number")));
  }
  for (const char* bad : {"0", "-1", "", "8x", "08", "0x8", "30001", "99999999999999999999", " 8"}) {
    EXPECT_THAT(refusal(fmt::format("recall:keys={}", bad), options),
                HasSubstr(fmt::format(
                    "data 'recall:keys={}': keys '{}' has to be a whole number from 1 to 30000", bad, bad)));
  }
  EXPECT_THAT(refusal("recall:values=1", options), HasSubstr("values '1'"));
  EXPECT_THAT(refusal("recall:keys=8,keys=8", options), HasSubstr("says keys twice"));
  EXPECT_EQ(refusal("recall:keys=32", options), "");
  EXPECT_THAT(
      refusal("recall:keys=33", options),
      HasSubstr("a context of 64 is too short for data 'recall:keys=33' with 33 keys; the least is 66"));
  EXPECT_EQ(refusal("recall", {.context = 64, .vocab = 25}), "");
  EXPECT_THAT(refusal("recall", {.context = 64, .vocab = 24}), HasSubstr("the least is 25"));
}

}  // namespace
}  // namespace headroom
