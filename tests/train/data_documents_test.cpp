#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <set>

#include "train/samples.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Byte i of document d: its neighbours in other documents differ, and so do those in its own.
char byte_of(std::size_t document, std::size_t i) {
  return static_cast<char>((document * 31 + i * 7 + i / 256) % 255 + 1);  // never 0, which is padding
}

std::map<std::string, std::string> write_documents(const Folder& folder,
                                                   const std::vector<std::size_t>& lengths) {
  std::map<std::string, std::string> documents;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::string text;
    for (std::size_t i = 0; i < lengths[d]; ++i) text += byte_of(d, i);
    const std::string name = fmt::format("document-{}", d);
    folder.write(name, text);
    documents[name] = text;
  }
  return documents;
}

// One piece of a sequence as it was written.
struct Found {
  std::string text;
  std::int64_t offset = 0;
  std::int32_t last_label = 0;
};

// Cuts a sample at its document starts, checking what holds for every sample.
std::vector<Found> pieces_of(const Sample& sample, std::int64_t context) {
  std::vector<Found> pieces;
  const std::vector<std::int32_t>& starts = sample.document_starts;
  EXPECT_EQ(starts[0], 0);
  bool padding = false;
  for (std::size_t d = 0; d < starts.size(); ++d) {
    const std::int32_t begin = starts[d];
    const std::int32_t end = d + 1 < starts.size() ? starts[d + 1] : static_cast<std::int32_t>(context);
    EXPECT_LE(begin, end) << "starts have to rise";
    EXPECT_LE(end, context);
    if (begin == end) continue;
    EXPECT_FALSE(padding) << "padding is the last document";
    Found piece{.text = {}, .offset = sample.positions[static_cast<std::size_t>(begin)], .last_label = 0};
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      EXPECT_EQ(sample.positions[i], piece.offset + std::ssize(piece.text)) << "at " << i;
      piece.text += static_cast<char>(sample.tokens[i]);
      padding |= sample.tokens[i] == 0;
      if (padding) {
        EXPECT_EQ(sample.tokens[i], 0);
        EXPECT_EQ(sample.labels[i], kIgnore);
      } else if (i + 1 < static_cast<std::size_t>(end)) {
        EXPECT_EQ(sample.labels[i], sample.tokens[i + 1]) << "at " << i;
      }
      piece.last_label = sample.labels[i];
    }
    if (padding) {
      EXPECT_EQ(piece.offset, 0);
      EXPECT_EQ(end, context);
    } else {
      pieces.push_back(piece);
    }
  }
  return pieces;
}

// Puts an epoch together from its samples; documents come whole and in one stretch.
std::vector<std::string> epoch_of(const Data& data, const DataOptions& options, std::int64_t epoch) {
  std::vector<std::string> documents;
  for (std::int64_t i = 0; i < data.samples_per_epoch().value(); ++i) {
    const Sample sample = sample_of(data, options, epoch * data.samples_per_epoch().value() + i);
    for (const Found& piece : pieces_of(sample, options.context)) {
      if (piece.offset == 0) {
        documents.push_back(piece.text);
      } else {
        EXPECT_EQ(piece.offset, std::ssize(documents.back()));
        documents.back() += piece.text;
      }
    }
  }
  return documents;
}

TEST(DataDocuments, AnEpochIsEveryDocumentOnceInAnOrderOfItsOwn) {
  const Folder folder;
  const auto written = write_documents(folder, {5, 0, 1, 100, 16, 15, 17, 1, 0, 64, 3});
  std::multiset<std::string> expected;
  for (const auto& [name, text] : written) {
    if (!text.empty()) expected.insert(text);
  }
  const DataOptions options{.context = 16, .seed = 4, .max_documents = 16, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  EXPECT_TRUE(data.documents());
  EXPECT_EQ(data.vocab_needed(), 256);
  EXPECT_EQ(data.samples_per_epoch(), 14);  // 222 bytes
  EXPECT_EQ(data.describe(), fmt::format("documents {}, 9 files, 222 bytes as tokens", folder.path()));
  std::set<std::vector<std::string>> orders;
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    const std::vector<std::string> documents = epoch_of(data, options, epoch);
    EXPECT_EQ(std::multiset<std::string>(documents.begin(), documents.end()), expected);
    orders.insert(documents);
  }
  EXPECT_EQ(orders.size(), 6u);
  const DataOptions other{.context = 16, .seed = 5, .max_documents = 16, .bytes = true};
  orders.insert(epoch_of(Data::open(folder.path(), other), other, 0));
  EXPECT_EQ(orders.size(), 7u);
}

TEST(DataDocuments, LabelsStayInsideADocumentAndGoOnWhereItIsCut) {
  const Folder folder;
  const auto written = write_documents(folder, {40, 1, 7, 33});
  const DataOptions options{.context = 10, .seed = 2, .max_documents = 4, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  int ended = 0;
  int cut = 0;
  for (std::int64_t index = 0; index < data.samples_per_epoch().value(); ++index) {
    for (const Found& piece : pieces_of(sample_of(data, options, index), options.context)) {
      const auto whole = std::ranges::find_if(written, [&](const auto& entry) {
        const std::string& text = entry.second;
        return static_cast<std::size_t>(piece.offset) < text.size() &&
               text.compare(static_cast<std::size_t>(piece.offset), piece.text.size(), piece.text) == 0;
      });
      ASSERT_NE(whole, written.end());
      const std::size_t next = static_cast<std::size_t>(piece.offset) + piece.text.size();
      const bool last = next == whole->second.size();
      EXPECT_EQ(piece.last_label, last ? kIgnore : static_cast<unsigned char>(whole->second[next]));
      ++(last ? ended : cut);
    }
  }
  EXPECT_EQ(ended, 4);
  EXPECT_GE(cut, 5);
}

TEST(DataDocuments, ADocumentThatFillsSequencesExactly) {
  const Folder folder;
  write_documents(folder, {32});
  const DataOptions options{.context = 16, .max_documents = 3, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  ASSERT_EQ(data.samples_per_epoch(), 2);
  const Sample first = sample_of(data, options, 0);
  const Sample second = sample_of(data, options, 1);
  EXPECT_EQ(first.document_starts, (std::vector<std::int32_t>{0, 16, 16, 16}));
  EXPECT_EQ(second.document_starts, (std::vector<std::int32_t>{0, 16, 16, 16}));
  EXPECT_EQ(first.positions.front(), 0);
  EXPECT_EQ(second.positions.front(), 16);
  EXPECT_EQ(first.labels.back(), second.tokens.front());
  EXPECT_EQ(second.labels.back(), kIgnore);
}

TEST(DataDocuments, TheLastSequenceOfAnEpochIsPadded) {
  const Folder folder;
  write_documents(folder, {3, 1});
  const DataOptions options{.context = 10, .max_documents = 5, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  ASSERT_EQ(data.samples_per_epoch(), 1);
  const Sample sample = sample_of(data, options, 0);
  EXPECT_THAT(sample.document_starts, testing::AnyOf(std::vector<std::int32_t>{0, 3, 4, 10, 10, 10},
                                                     std::vector<std::int32_t>{0, 1, 4, 10, 10, 10}));
  EXPECT_EQ(pieces_of(sample, 10).size(), 2u);
  for (std::size_t i = 4; i < 10; ++i) {
    EXPECT_EQ(sample.tokens[i], 0);
    EXPECT_EQ(sample.labels[i], kIgnore);
    EXPECT_EQ(sample.positions[i], i - 4);
  }
}

TEST(DataDocuments, PiecesPastMaxDocumentsAreOneDocumentOfPadding) {
  const Folder folder;
  write_documents(folder, std::vector<std::size_t>(40, 2));
  const DataOptions options{.context = 16, .seed = 1, .max_documents = 3, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  ASSERT_EQ(data.samples_per_epoch(), 5);
  std::set<std::string> seen;
  for (std::int64_t index = 0; index < 100; ++index) {
    const Sample sample = sample_of(data, options, index);
    EXPECT_EQ(sample.document_starts, (std::vector<std::int32_t>{0, 2, 4, 6}));
    const std::vector<Found> pieces = pieces_of(sample, 16);
    EXPECT_EQ(pieces.size(), 3u);
    for (const Found& piece : pieces) seen.insert(piece.text);
    for (std::size_t i = 6; i < 16; ++i) EXPECT_EQ(sample.labels[i], kIgnore);
  }
  EXPECT_EQ(seen.size(), 40u);  // what one epoch leaves out, another has
}

TEST(DataDocuments, LongPiecesAreReadWholeThroughASmallBuffer) {
  const Folder folder;
  const auto written = write_documents(folder, {70'000, 50'001});
  const DataOptions options{.context = 60'000, .seed = 1, .max_documents = 2, .bytes = true};
  const Data data = Data::open(folder.path() + "/", options);
  std::multiset<std::string> expected;
  for (const auto& [name, text] : written) expected.insert(text);
  const std::vector<std::string> documents = epoch_of(data, options, 0);
  EXPECT_EQ(std::multiset<std::string>(documents.begin(), documents.end()), expected);
}

TEST(DataDocuments, OnlyFilesOfTheDirectoryItselfCount) {
  const Folder folder;
  folder.write("a", "abc");
  fs::create_directory(fs::path(folder.path()) / "inner");
  folder.write("inner/b", "hidden");
  fs::create_symlink("a", fs::path(folder.path()) / "same");
  const Data data = Data::open(folder.path(), {.context = 4});
  EXPECT_THAT(data.describe(), HasSubstr("2 files, 6 bytes"));
}

TEST(DataDocuments, AFileThatShrankOrWentIsNamed) {
  const Folder folder;
  const DataOptions options{.context = 8, .max_documents = 2, .bytes = true};
  const std::string path = folder.write("a", "01234567");
  const Data data = Data::open(folder.path(), options);
  EXPECT_EQ(refusal(data, options, 0), "");
  folder.write("a", "0123");
  EXPECT_THAT(refusal(data, options, 0), HasSubstr("had 8 bytes when it was opened and now ends at 4"));
  fs::remove(path);
  const std::string message = "document 'a' of '" + folder.path() + "' cannot be read";
  EXPECT_THAT(refusal(data, options, 0), HasSubstr(message));
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // which nobody writes to: it is not waited for
  EXPECT_THAT(refusal(data, options, 0), HasSubstr(message));
}

TEST(DataDocuments, DirectoriesThatCannotServeAreRefused) {
  const Folder folder;
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("holds no files"));
  folder.write("a", "");
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("holds only empty files"));
  folder.write("b", "text");
  EXPECT_EQ(refusal(folder.path(), {.context = 4}), "");
  EXPECT_THAT(refusal(folder.path(), {.context = 4, .max_documents = 0}),
              HasSubstr("0 documents in a sequence are impossible"));
  EXPECT_THAT(refusal(folder.path(), {.context = 4, .vocab = 100}), HasSubstr("the least is 256"));
  const fs::path odd = fs::path(folder.path()) / "odd";
  fs::create_symlink("nowhere", odd);
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("document 'odd' of"));
  fs::remove(odd);
  ASSERT_EQ(mkfifo(odd.c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("is no regular file"));
  fs::remove(odd);
  const fs::path large = fs::path(folder.path()) / "large";
  std::ofstream(large).close();
  fs::resize_file(large, std::uintmax_t{1} << 31);  // has no blocks
  EXPECT_THAT(refusal(folder.path(), {.context = 4}), HasSubstr("document 'large' of"));
}

// What a sample holds is not looked for from the start: one far in the epoch opens no other file.
TEST(DataDocuments, ASampleReadsItsOwnDocumentsOnly) {
  const Folder folder;
  write_documents(folder, {10, 10, 10, 10, 10, 10, 10, 10});
  const DataOptions options{.context = 10, .seed = 8, .max_documents = 1, .bytes = true};
  const Data data = Data::open(folder.path(), options);
  const Sample sample = sample_of(data, options, 6);
  for (std::size_t d = 0; d < 8; ++d) {
    if (static_cast<char>(sample.tokens[0]) == byte_of(d, 0)) continue;
    fs::remove(fs::path(folder.path()) / fmt::format("document-{}", d));
  }
  EXPECT_EQ(sample_of(data, options, 6), sample);
}

}  // namespace
}  // namespace headroom
