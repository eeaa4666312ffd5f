// What holds for every source.
#include "headroom/train/data.h"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>

#include "headroom/core/bytes.h"
#include "headroom/core/checksum.h"
#include "memory/heap_counter.h"
#include "train/pieces_of_files.h"
#include "train/samples.h"

namespace headroom {
namespace {

using testing::HasSubstr;

// One of each kind.
struct Sources {
  Sources() {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>(' ' + i * i % 89);
    folder.write("text.txt", text);
    folder.write("tokens.bin", text);
    std::filesystem::create_directory(folder.path() + "/many");
    for (int d = 0; d < 30; ++d) {
      folder.write(fmt::format("many/{}", d), text.substr(static_cast<std::size_t>(d), d * d % 170));
    }
  }
  [[nodiscard]] std::vector<std::string> specs() const {
    return {folder.path() + "/text.txt", folder.path() + "/tokens.bin", folder.path() + "/many", "recall"};
  }

  Folder folder;
};

TEST(Data, ASampleIsAFunctionOfItsIndex) {
  const Sources sources;
  const DataOptions options{.context = 64, .seed = 77, .max_documents = 4};
  for (const std::string& spec : sources.specs()) {
    const Data data = Data::open(spec, options);
    constexpr std::int64_t kSamples = 150;  // some epochs
    std::vector<Sample> forward;
    for (std::int64_t i = 0; i < kSamples; ++i) forward.push_back(sample_of(data, options, i));
    EXPECT_NE(forward[0], forward[1]) << spec;
    const Data again = Data::open(spec, options);
    for (std::int64_t i = kSamples - 1; i >= 0; i -= 7) {
      EXPECT_EQ(sample_of(again, options, i), forward[static_cast<std::size_t>(i)]) << spec;
    }
    // Two threads in different epochs of one object.
    std::vector<Sample> found(kSamples);
    const auto every_other = [&](std::int64_t first) {
      for (std::int64_t i = 0; i < kSamples; i += 2) {
        const std::int64_t index = first == 0 ? i : kSamples - 1 - i;
        found[static_cast<std::size_t>(index)] = sample_of(data, options, index);
      }
    };
    {
      const std::jthread one(every_other, 0);
      const std::jthread two(every_other, 1);
    }
    EXPECT_EQ(found, forward) << spec;
  }
}

TEST(Data, TheSeedChangesTheOrder) {
  const Sources sources;
  const DataOptions options{.context = 64, .seed = 1, .max_documents = 4};
  const DataOptions other{.context = 64, .seed = 2, .max_documents = 4};
  for (const std::string& spec : sources.specs()) {
    const Data data = Data::open(spec, options);
    const Data different = Data::open(spec, other);
    int same = 0;
    for (std::int64_t i = 0; i < 20; ++i)
      same += sample_of(data, options, i) == sample_of(different, other, i);
    EXPECT_LT(same, 10) << spec;
  }
}

// A change of these numbers changes the samples of every saved run.
TEST(Data, SamplesStayWhatTheyAre) {
  const DataOptions options{.context = 16, .seed = 1};
  const Sample sample = sample_of(Data::open("recall:keys=3,values=4", options), options, 5);
  EXPECT_EQ(sample.tokens, (std::vector<std::int32_t>{15, 17, 9, 17, 7, 7, 7, 7, 2, 1, 0, 0, 2, 0, 0, 2}));

  const Folder folder;
  const std::string text = folder.write("text.txt", "abcdefghijklmnop");
  std::filesystem::create_directory(folder.path() + "/many");
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) folder.write(fmt::format("many/{}", name), name);
  const DataOptions pairs{.context = 2, .seed = 1, .max_documents = 2};
  std::string windows;
  std::string documents;
  for (std::int64_t i = 0; i < 14; ++i) {
    windows += static_cast<char>(sample_of(Data::open(text, pairs), pairs, i).tokens[0]);
    for (const std::int32_t token : sample_of(Data::open(folder.path() + "/many", pairs), pairs, i).tokens) {
      documents += static_cast<char>(token);
    }
  }
  EXPECT_EQ(windows, "lbhjnfdndblfjh");
  EXPECT_EQ(documents, "fadbcecfdbaeecfbadafdebcbdef");
}

TEST(Data, FillingTakesNoHeap) {
#if HEADROOM_HEAP_COUNTED
  const Sources sources;
  const DataOptions options{.context = 64, .seed = 1, .max_documents = 4};
  for (const std::string& spec : sources.specs()) {
    const Data data = Data::open(spec, options);
    Sample sample = poisoned_sample(data, options);
    const Samples views = room_of(sample);
    const std::int64_t before = heap_bytes;
    heap_peak_bytes = before;
    for (std::int64_t i = 0; i < 100; ++i) data.fill(i, views);
    EXPECT_EQ(heap_peak_bytes, before) << spec;
  }
#else
  GTEST_SKIP() << "the sanitizer has its own malloc";
#endif
}

TEST(Data, SpecsThatNameNothingAreRefused) {
  const Folder folder;
  const DataOptions options{.context = 8};
  for (const std::string& spec :
       {std::string(), folder.path() + "/missing.txt", folder.path() + "/missing.bin",
        folder.path() + "/missing.bin:uint32", std::string("recal")}) {
    const std::string message = refusal(spec, options);
    EXPECT_THAT(message, HasSubstr(fmt::format("data '{}' names nothing that exists", spec)));
    EXPECT_THAT(message, HasSubstr("recall:keys=K,values=V"));
  }
  EXPECT_THAT(refusal("/dev/null", options),
              HasSubstr("'/dev/null' is neither a file nor a directory; give"));
  std::filesystem::create_directory(folder.path() + "/folder.bin");
  EXPECT_THAT(refusal(folder.path() + "/folder.bin:uint32", options), HasSubstr("is a directory"));
  EXPECT_THAT(refusal(folder.path() + "/folder.bin", options), HasSubstr("holds no files"));
}

// Bytes as tokens are what a model of bytes reads; one of words would read nonsense.
TEST(Data, TextForAModelOfWordsIsRefusedUnlessBytesAreMeant) {
  const Folder folder;
  const std::string text = folder.write("book.txt", "It was the best of times.");
  for (const std::string& spec : {text, folder.path()}) {
    EXPECT_EQ(refusal(spec, {.context = 8}), "");
    EXPECT_EQ(refusal(spec, {.context = 8, .vocab = 256}), "");
    EXPECT_EQ(refusal(spec, {.context = 8, .vocab = 257}),
              fmt::format("data '{}' is text, whose bytes are not tokens of a model with 257 words; give the "
                          "tokens as a .bin, or --bytes to train on bytes as tokens 0 to 255",
                          spec));
    EXPECT_THAT(refusal(spec, {.context = 8, .vocab = 151'936}), HasSubstr("a model with 151,936 words"));
    EXPECT_EQ(refusal(spec, {.context = 8, .vocab = 257, .bytes = true}), "");
    EXPECT_EQ(refusal(spec, {.context = 8, .vocab = 256, .bytes = true}), "");
    EXPECT_THAT(refusal(spec, {.context = 8, .vocab = 255, .bytes = true}), HasSubstr("the least is 256"));
  }
  // What has tokens of its own is not taken for bytes.
  const std::string tokens = folder.write("tokens.bin", "It was the best of times,");
  for (const std::string& spec :
       {tokens, tokens + ":uint32", std::string("recall"), std::string("recall:keys=2")}) {
    EXPECT_EQ(refusal(spec, {.context = 8, .vocab = 1000, .bytes = true}),
              fmt::format("--bytes takes bytes for tokens, and data '{}' has tokens of its own; leave it out",
                          spec));
  }
}

// Bits of a run hang on its data: the fingerprint is how a resumed run knows that they are the same.
TEST(Data, TheFingerprintIsOfTheContentsAlone) {
  const Folder folder;
  const auto fingerprint = [](const std::string& spec, const DataOptions& options = {.context = 4}) {
    return Data::open(spec, options).fingerprint();
  };
  const std::string text = folder.write("a.txt", "0123456789abcdef");
  const std::string first = fingerprint(text);
  EXPECT_EQ(first.size(), 16U);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  // Not of the path, the time, or how it is cut.
  std::filesystem::create_directory(folder.path() + "/elsewhere");
  EXPECT_EQ(fingerprint(folder.write("elsewhere/b.txt", "0123456789abcdef")), first);
  EXPECT_EQ(fingerprint(text, {.context = 7, .vocab = 300, .seed = 5, .bytes = true}), first);
  // Of every byte, of the size and of how bytes are read.
  std::set<std::string> all = {first};
  const auto is_new = [&](const std::string& found) { return all.insert(found).second; };
  for (std::size_t i = 0; i < 16; ++i) {
    std::string other = "0123456789abcdef";
    other[i] = '!';
    EXPECT_TRUE(is_new(fingerprint(folder.write("c.txt", other)))) << i;
  }
  EXPECT_TRUE(is_new(fingerprint(folder.write("c.txt", "0123456789abcdef0"))));
  const std::string tokens = folder.write("d.bin", "0123456789abcdef");
  EXPECT_TRUE(is_new(fingerprint(tokens)));
  EXPECT_TRUE(is_new(fingerprint(tokens + ":uint32", {.context = 2, .vocab = 1 << 30})));
  // Documents: of names, sizes and bytes.
  const auto documents = [&](const std::vector<std::pair<std::string, std::string>>& files) {
    const Folder own;
    for (const auto& [name, contents] : files) own.write(name, contents);
    return fingerprint(own.path());
  };
  const std::string some = documents({{"a", "0123"}, {"b", "456789"}});
  EXPECT_TRUE(is_new(some));
  EXPECT_EQ(documents({{"b", "456789"}, {"a", "0123"}}), some);
  EXPECT_TRUE(is_new(documents({{"a", "0123"}, {"c", "456789"}})));
  EXPECT_TRUE(is_new(documents({{"a", "01234"}, {"b", "56789"}})));
  EXPECT_TRUE(is_new(documents({{"a", "0123"}, {"b", "45678!"}})));
  EXPECT_TRUE(is_new(documents({{"a", "0123"}})));
  // Recall: of its sizes.
  EXPECT_TRUE(is_new(fingerprint("recall", {.context = 64})));
  EXPECT_EQ(fingerprint("recall:keys=4,values=4", {.context = 32, .seed = 1}),
            fingerprint("recall", {.context = 64}));
  EXPECT_TRUE(is_new(fingerprint("recall:keys=3", {.context = 64})));
  EXPECT_TRUE(is_new(fingerprint("recall:values=3", {.context = 64})));
  // A change of these digits makes every saved run's data another's.
  EXPECT_EQ(first, "fc3fa0e842d3119e");
  EXPECT_EQ(some, "4c804cdb280c069e");
}

TEST(Data, TheFingerprintReadsDocumentsOneAfterAnother) {
  const Folder folder;
  std::string all;
  for (const auto& [name, bytes] : {std::pair{"a", 700'001}, {"b", 1}, {"c", 300'000}, {"d", 5}}) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(' ' + i % 89);
    folder.write(name, text);
    all += text;
  }
  const std::string fingerprint = Data::open(folder.path(), {.context = 4}).fingerprint();
  EXPECT_EQ(fingerprint.substr(8), fmt::format("{:08x}", crc32c(std::as_bytes(std::span(all)))));
}

// A file without blocks. Of what is larger than 256 MiB pieces are read, both ends among them.
TEST(Data, TheFingerprintOfLargeDataIsThatOfPieces) {
  const Folder folder;
  const std::string path = folder.write("large.bin", "");
  constexpr std::int64_t kBytes = 300 * kMiB;
  std::filesystem::resize_file(path, kBytes);
  const auto fingerprint = [&] { return Data::open(path, {.context = 4}).fingerprint(); };
  const std::string before = fingerprint();
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(kBytes - 1).put('x');
  EXPECT_NE(fingerprint(), before);
}

TEST(Data, PiecesOfALargeFileAreSpreadOverIt) {
  using Piece = std::pair<std::int64_t, std::int64_t>;
  const auto pieces = [](std::int64_t total) {
    std::vector<Piece> found;
    for_each_piece(total, {.count = 4, .bytes = 10},
                   [&](std::int64_t begin, std::int64_t bytes) { found.emplace_back(begin, bytes); });
    return found;
  };
  EXPECT_EQ(pieces(0), std::vector<Piece>{});
  EXPECT_EQ(pieces(7), (std::vector<Piece>{{0, 7}}));
  EXPECT_EQ(pieces(40), (std::vector<Piece>{{0, 10}, {10, 10}, {20, 10}, {30, 10}}));
  EXPECT_EQ(pieces(41), (std::vector<Piece>{{0, 10}, {10, 10}, {20, 10}, {31, 10}}));
  EXPECT_EQ(pieces(310), (std::vector<Piece>{{0, 10}, {100, 10}, {200, 10}, {300, 10}}));
}

TEST(Data, WhatMayNotBeReadIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const Folder folder;
  const std::string path = folder.write("secret.txt", "0123456789");
  chmod(path.c_str(), 0);
  EXPECT_THAT(refusal(path, {.context = 4}), HasSubstr("cannot be read: Permission denied; give"));
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("cannot be read: Permission denied"));
}

TEST(Data, OptionsOutOfRangeAreRefused) {
  for (const std::int64_t context : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31}) {
    EXPECT_THAT(refusal("recall", {.context = context}),
                HasSubstr(fmt::format("a context of {} is impossible; use 1 to 2147483647", context)));
  }
  EXPECT_THAT(refusal("recall", {.context = 64, .vocab = -1}), HasSubstr("a vocabulary of -1"));
}

std::string fill_refusal(const Data& data, std::int64_t index, const Samples& views) {
  try {
    data.fill(index, views);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Data, RoomForAnotherSizeIsRefused) {
  const DataOptions options{.context = 64};
  const Data data = Data::open("recall", options);
  Sample sample = poisoned_sample(data, options);
  const Samples good = room_of(sample);
  EXPECT_EQ(fill_refusal(data, 0, good), "");
  EXPECT_EQ(fill_refusal(data, -1, good), "sample -1 does not exist; the first is 0");

  Samples views = good;
  views.tokens = good.tokens.first(63);
  EXPECT_EQ(fill_refusal(data, 0, views), "there is room for 63 tokens; a sample has 64");
  views = good;
  views.labels = {};
  EXPECT_EQ(fill_refusal(data, 0, views), "there is room for 0 labels; a sample has 64");
  views = good;
  views.positions = good.positions.last(1);
  EXPECT_EQ(fill_refusal(data, 0, views), "there is room for 1 positions; a sample has 64");
  views = good;
  views.document_starts = good.tokens;
  EXPECT_THAT(fill_refusal(data, 0, views), HasSubstr("has no boundaries"));

  const Folder folder;
  folder.write("a", "0123456789");
  const DataOptions packed{.context = 64, .max_documents = 7};
  const Data documents = Data::open(folder.path(), packed);
  EXPECT_THAT(fill_refusal(documents, 0, good), HasSubstr("room for 0 document starts; a sample has 8"));
}

}  // namespace
}  // namespace headroom
