#include "jobs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"
#include "headroom/core/bytes.h"
#include "memory/heap_counter.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string line(std::int64_t step) {
  return fmt::format(R"({{"step":{},"loss":1.5,"tokens_per_second":123456.78901234567}})"
                     "\n",
                     step);
}

std::string lines(std::int64_t first, std::int64_t last) {
  std::string text;
  for (std::int64_t step = first; step <= last; ++step) text += line(step);
  return text;
}

// What a run that goes on after `steps_done` leaves of the text.
std::string kept(std::string_view text, std::int64_t steps_done) {
  const TemporaryFolder folder;
  put(folder / "metrics.jsonl", text);
  { const Metrics metrics(folder.path(), steps_done); }
  return content(folder / "metrics.jsonl");
}

TEST(Metrics, AreALinePerStep) {
  const TemporaryFolder folder;
  Metrics metrics(folder.path(), 0);
  metrics.add({.step = 1, .loss = 2.5, .tokens = 64});
  metrics.add({.step = 2, .loss = std::numeric_limits<double>::quiet_NaN()});
  const std::string text = content(folder / "metrics.jsonl");  // there at once
  ASSERT_EQ(std::ranges::count(text, '\n'), 2);
  const auto first = nlohmann::json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_EQ(first["tokens"], 64);
  EXPECT_TRUE(nlohmann::json::parse(text.substr(text.find('\n')))["loss"].is_null());
}

TEST(Metrics, AreCutAfterTheStepsThatAreDone) {
  EXPECT_EQ(kept(lines(1, 9), 4), lines(1, 4));
  EXPECT_EQ(kept(lines(1, 9), 9), lines(1, 9));
  EXPECT_EQ(kept(lines(1, 9), 20), lines(1, 9));
  EXPECT_EQ(kept(lines(1, 9), 0), "");
  EXPECT_EQ(kept(lines(5, 9), 4), "");
  EXPECT_EQ(kept("", 4), "");
  const TemporaryFolder folder;
  { const Metrics metrics(folder.path(), 4); }  // the file may be missing
  EXPECT_EQ(content(folder / "metrics.jsonl"), "");
}

TEST(Metrics, LeaveABackupOfHardLinksAsItIs) {
  for (const std::int64_t done : {4, 9}) {
    const TemporaryFolder folder;
    put(folder / "metrics.jsonl", lines(1, 9));
    fs::create_hard_link(folder / "metrics.jsonl", folder / "backup");
    Metrics metrics(folder.path(), done);
    metrics.add({.step = done + 1});
    EXPECT_EQ(content(folder / "backup"), lines(1, 9));
    EXPECT_THAT(content(folder / "metrics.jsonl"), HasSubstr(lines(1, done) + "{\"step\":"));
  }
}

TEST(Metrics, WhatAKilledWriterLeftIsCut) {
  const std::string torn = line(4).substr(0, 17);
  EXPECT_EQ(kept(lines(1, 3) + torn, 9), lines(1, 3));
  EXPECT_EQ(kept(torn, 9), "");
  // All of a line but its end: the next line would go on behind it.
  EXPECT_EQ(kept(lines(1, 3) + line(4).substr(0, line(4).size() - 1), 9), lines(1, 3));
  EXPECT_EQ(kept(lines(1, 3) + std::string(4096, '\0'), 9),
            lines(1, 3));  // blocks that never got to the disk
  EXPECT_EQ(kept(lines(1, 3) + "\n" + torn + "\n", 9), lines(1, 3));
  // Whatever else was written there, before a line that stays.
  const std::string odd = "no JSON\n[]\n{\"step\":\"two\"}\n{\"step\":2.5}\n{}\n";
  EXPECT_EQ(kept(odd + line(3), 9), odd + line(3));
  EXPECT_EQ(kept(line(3) + odd, 9), line(3));
}

// The file is read in blocks of 64 KiB: cuts and lines at every distance from their edges.
TEST(Metrics, AreCutAcrossBlocks) {
  const std::string text = lines(1, 4000);
  ASSERT_GT(text.size(), 3U << 16);
  for (const std::int64_t done : {1, 2, 999, 1000, 1500, 2500, 3999, 4000}) {
    const std::string expected = lines(1, done);
    for (std::size_t torn = 0; torn < line(1).size(); torn += 7)
      ASSERT_TRUE(kept(text + std::string(torn, 'x'), done) == expected) << done << " " << torn;
  }
  for (const std::size_t size : {65535U, 65536U, 65537U, 200'000U}) {
    const std::string endless(size, 'x');
    EXPECT_TRUE(kept(lines(1, 3) + endless, 9) == lines(1, 3)) << size;
    EXPECT_TRUE(kept(lines(1, 3) + endless + "\n" + lines(10, 12), 9) == lines(1, 3)) << size;
    EXPECT_EQ(kept(endless, 9), "") << size;
  }
}

#if HEADROOM_HEAP_COUNTED
TEST(Metrics, TakeNoMemoryForALongFile) {
  const TemporaryFolder folder;
  const std::string block = lines(100'001, 110'000);  // to be searched through, all of them
  std::string text = lines(1, 3);
  for (int i = 0; i < 20; ++i) text += block;
  put(folder / "metrics.jsonl", text);
  EXPECT_GT(fs::file_size(folder / "metrics.jsonl"), 10U << 20);
  const std::int64_t before = heap_bytes;
  heap_peak_bytes = before;
  { const Metrics metrics(folder.path(), 3); }
  EXPECT_LT(heap_peak_bytes - before, 256 * kKiB);
  EXPECT_EQ(content(folder / "metrics.jsonl"), lines(1, 3));
}
#endif

TEST(Metrics, AreARegularFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "metrics.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { const Metrics metrics(folder.path(), 0); }), HasSubstr("not a regular file"));
}

TEST(Metrics, SayThatTheFolderIsGone) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  Metrics metrics(folder / "run", 0);
  metrics.add({.step = 1});
  metrics.before_checkpoint();
  fs::remove_all(folder / "run");
  EXPECT_THAT(error_of([&] { metrics.add({.step = 2}); }), HasSubstr("run is gone"));
  EXPECT_THAT(error_of([&] { metrics.before_checkpoint(); }), HasSubstr("run is gone"));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

}  // namespace
}  // namespace headroom
