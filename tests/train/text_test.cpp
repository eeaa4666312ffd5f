#include "train/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/bytes.h"
#include "train/samples.h"

namespace headroom {
namespace {

using namespace std::literals;
using testing::HasSubstr;

std::string reason(std::string_view bytes, std::int64_t begin = 0, bool ends_file = true) {
  const std::span<const char> characters(bytes);
  return why_not_text({.bytes = std::as_bytes(characters), .begin = begin, .ends_file = ends_file})
      .value_or("");
}

TEST(Text, IsUtf8WithWhiteSpace) {
  for (
      const std::string_view text :
      {""sv, "a"sv, "tab\tline\nreturn\r\nfeed\f\v"sv, "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x99\x82"sv,
       "\xEF\xBB\xBFwith a mark"sv, "{\"text\": \"a line of JSON\"}"sv, "PK and PAR1 and BZh are words"sv,
       "\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"sv}) {
    EXPECT_EQ(reason(text), "") << text;
  }
}

TEST(Text, HasNoControlBytes) {
  EXPECT_EQ(reason("abc\0def"sv), "has the byte 0x00 at 3, which is not text");
  EXPECT_EQ(reason("abc\0def"sv, 1000), "has the byte 0x00 at 1003, which is not text");
  for (const char byte : {'\x01', '\x08', '\x0E', '\x1B', '\x1F', '\x7F'})
    EXPECT_THAT(reason(std::string("a") + byte), HasSubstr("which is not text"));
}

TEST(Text, HasNoBrokenCharacters) {
  EXPECT_EQ(reason("na\xEFve"), "is not UTF-8 at byte 2, so it is not text");  // Latin-1
  for (const std::string_view broken :
       {"\x80"sv, "\xBF"sv, "\xC0\x80"sv, "\xC1\xBF"sv, "\xC3"sv, "\xC3("sv, "\xE0\x9F\xBF"sv,
        "\xED\xA0\x80"sv, "\xE2\x82"sv, "\xE2(\xA1"sv, "\xE2\x82("sv, "\xF0\x8F\xBF\xBF"sv,
        "\xF4\x90\x80\x80"sv, "\xF5\x80\x80\x80"sv, "\xF0\x9F\x99"sv, "\xF0\x9F\x99("sv, "\xFF"sv}) {
    EXPECT_THAT(reason(broken), HasSubstr("is not UTF-8 at byte 0"));
  }
}

// A piece out of the middle of a file may cut characters at both ends, and nothing else.
TEST(Text, ACutCharacterIsNoFault) {
  const std::string_view text = "\xF0\x9F\x99\x82\xF0\x9F\x99\x82\xE2\x82\xAC\xC3\xA4";
  for (std::size_t begin = 1; begin < text.size(); ++begin) {
    for (std::size_t end = begin; end < text.size(); ++end)
      EXPECT_EQ(reason(text.substr(begin, end - begin), static_cast<std::int64_t>(begin), false), "");
    EXPECT_EQ(reason(text.substr(begin), static_cast<std::int64_t>(begin)), "");
  }
  EXPECT_NE(reason("\x80\x80\x80\x80", 5, false), "");  // no character is as long
  EXPECT_NE(reason("\x80", 0, false), "");              // nothing begins before a file
  EXPECT_NE(reason("\xE2\x82", 5, true), "");           // nothing follows it
}

TEST(Text, KnownFilesAreNamed) {
  EXPECT_THAT(reason("\x93NUMPY\x01\0"sv),
              HasSubstr("is a NumPy array, not text; save its tokens with array.tofile"));
  EXPECT_THAT(reason("\x1F\x8B\x08\0"sv), HasSubstr("is compressed with gzip, not text; unpack it first"));
  EXPECT_THAT(reason("BZh91AY&SY1"sv), HasSubstr("bzip2"));
  EXPECT_THAT(reason("\xFD\x37zXZ\0"sv), HasSubstr("xz"));
  EXPECT_THAT(reason("\x28\xB5\x2F\xFD"sv), HasSubstr("zstd"));
  EXPECT_THAT(reason("PK\x03\x04"sv), HasSubstr("a zip archive"));
  EXPECT_THAT(reason("%PDF-1.4\nall of it ASCII"sv), HasSubstr("is a PDF, not text; extract its text"));
  EXPECT_THAT(reason("PAR1\x15\x04"sv), HasSubstr("a Parquet table"));
  EXPECT_THAT(reason("ARROW1\0\0"sv), HasSubstr("an Arrow table"));
  EXPECT_THAT(reason("\x89PNG\r\n\x1A\n"sv), HasSubstr("an image"));
  EXPECT_THAT(reason("\xFF\xD8\xFF\xE0"sv), HasSubstr("an image"));
  EXPECT_THAT(reason("\x7F\x45LF"sv), HasSubstr("a program"));
  EXPECT_THAT(reason("\xFF\xFE\x61\0"sv), HasSubstr("is UTF-16, not text; convert it to UTF-8"));
  EXPECT_THAT(reason("\x40\0\0\0\0\0\0\0{\"weight\""sv), HasSubstr("is a safetensors file, not text"));
  EXPECT_THAT(reason(R"({"version": "1.0", "truncation": null, "added_tokens": []})"),
              HasSubstr("is a tokenizer's JSON, not text"));
  // Only where a file begins.
  EXPECT_EQ(reason("%PDF-1.4", 100), "");
}

// As data: what is refused as text is taken with bytes, and what is text further on only is not text.
TEST(Text, DataThatIsNotTextIsRefused) {
  const Folder folder;
  const std::string letters(3000, 'x');
  const auto refused = [&](const std::string& name, const std::string& contents, const std::string& why) {
    const std::string path = folder.write(name, contents);
    EXPECT_EQ(refusal(path, {.context = 8}),
              fmt::format("'{}' {}; --bytes trains on the bytes of any file", path, why));
    EXPECT_EQ(refusal(path, {.context = 8, .bytes = true}), "");
  };
  refused("a.npy", "\x93NUMPY" + letters,
          "is a NumPy array, not text; save its tokens with array.tofile(\"tokens.bin\") and give that file");
  refused("book.txt.gz", "\x1F\x8B\x08" + letters, "is compressed with gzip, not text; unpack it first");
  refused("latin.txt", letters + "\xE4" + letters, "is not UTF-8 at byte 3000, so it is not text");
  refused("nul.txt", letters + '\0' + letters, "has the byte 0x00 at 3000, which is not text");
  refused("vocab.json", "{\"a\": 0, \"b\": 1}" + letters,
          "is a tokenizer's JSON, not text; write what it makes of a text into a .bin and give that file");
  // Of a long file pieces are looked at: the beginning, the end and some between.
  const std::string book(4 * kMiB, 'x');
  refused("tail.txt", book + '\0', fmt::format("has the byte 0x00 at {}, which is not text", 4 * kMiB));
  refused("middle.txt", book.substr(0, kMiB) + std::string(kMiB, '\0') + book,
          "has the byte 0x00 at 1245183, which is not text");
  // Pieces may cut characters.
  std::string signs;
  while (signs.size() < 2 * kMiB) signs += "\xE2\x82\xAC";
  EXPECT_EQ(refusal(folder.write("signs.txt", signs), {.context = 8}), "");
}

TEST(Text, ADocumentThatIsNotTextIsRefused) {
  const Folder folder;
  folder.write("a", "text");
  folder.write("b", "te\0t"sv);
  EXPECT_EQ(
      refusal(folder.path(), {.context = 4}),
      fmt::format("document 'b' of '{}' has the byte 0x00 at 2, which is not text; --bytes trains on the "
                  "bytes of any file",
                  folder.path()));
  EXPECT_EQ(refusal(folder.path(), {.context = 4, .bytes = true}), "");
  // Its beginning is looked at, where a character may be cut.
  std::string cut(1023, 'x');
  cut += "\xE2\x82\xAC";
  folder.write("b", cut);
  EXPECT_EQ(refusal(folder.path(), {.context = 4}), "");
}

TEST(Text, FilesOfTokensAreNotArchives) {
  const Folder folder;
  const std::string zeros(3000, '\0');
  EXPECT_THAT(refusal(folder.write("a.bin", "\x93NUMPY" + zeros), {.context = 8}),
              HasSubstr("is a NumPy array, not tokens; save its tokens with array.tofile(\"tokens.bin\")"));
  EXPECT_THAT(refusal(folder.write("pytorch_model.bin", "PK\x03\x04" + zeros), {.context = 8}),
              HasSubstr("is a zip archive, not tokens"));
  // Two bytes are a token that may well stand first.
  EXPECT_EQ(refusal(folder.write("b.bin", "\x1F\x8B\x08" + zeros + '\0'), {.context = 8}), "");
}

}  // namespace
}  // namespace headroom
