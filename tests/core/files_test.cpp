#include "headroom/core/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <functional>
#include <optional>

#include "core/faulty_disk.h"
#include "core/temporary_folder.h"
#include "headroom/core/bytes.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(WriteFile, AppearsWholeAndReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder / "state.json";
  write_file(path, "first");
  EXPECT_EQ(content(path), "first");
  write_file(path, "second, longer");
  EXPECT_EQ(content(path), "second, longer");
  write_file(path, "");
  EXPECT_EQ(content(path), "");
  EXPECT_THAT(names(folder.path()), ElementsAre("state.json"));
}

TEST(WriteFile, SyncsBeforeTheRenameAndTheFolderAfterIt) {
  const TemporaryFolder folder;
  const ArmedDisk disk;
  write_file(folder / "file", "text");
  EXPECT_THAT(faulty_disk().log, ElementsAre("write", "fsync", "rename", "fsync"));
}

TEST(WriteFile, LosesNothingWhereverTheDiskFails) {
  const TemporaryFolder folder;
  const fs::path path = folder / "file";
  for (int call = 1; call <= 3; ++call) {  // the fourth is the sync of the folder, after the rename
    write_file(path, "before");
    const std::string message = error_of([&] {
      const ArmedDisk disk(call, ENOSPC);
      write_file(path, "after");
    });
    EXPECT_THAT(message, HasSubstr(path.string())) << call;
    EXPECT_THAT(message, HasSubstr("No space left on device")) << call;
    EXPECT_EQ(content(path), "before") << call;
    EXPECT_THAT(names(folder.path()), ElementsAre("file")) << call;
  }
}

TEST(WriteFile, GoesOnAfterAnInterruption) {
  const TemporaryFolder folder;
  for (const int call : {1, 2}) {
    const ArmedDisk disk(call, EINTR);
    write_file(folder / "file", "text");
    EXPECT_EQ(content(folder / "file"), "text");
  }
}

TEST(WriteFile, RefusesTwoWritersOfOneName) {
  const TemporaryFolder folder;
  const fs::path path = folder / "file";
  {
    FileWriter first(path);
    first.write("first");
    EXPECT_THAT(error_of([&] { FileWriter second(path); }), HasSubstr("another process is writing"));
    FileWriter moved = std::move(first);
    moved.write(", moved");
    moved.commit();
  }
  EXPECT_EQ(content(path), "first, moved");
  put(folder / ".file.tmp", "what a killed writer left, longer than the new text");
  write_file(path, "new");
  EXPECT_EQ(content(path), "new");
  EXPECT_THAT(names(folder.path()), ElementsAre("file"));
}

TEST(WriteFile, NamesPathAndReason) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { write_file(folder / "no/such/file", "x"); }),
            fmt::format("cannot write {}: No such file or directory", (folder / "no/such/file").string()));
  EXPECT_EQ(error_of([&] { check_can_write(folder / "no/such/file"); }),
            fmt::format("cannot write {}: there is no folder {}", (folder / "no/such/file").string(),
                        (folder / "no/such").string()));
  EXPECT_THAT(error_of([&] { write_file(folder.path() / "", "x"); }), HasSubstr("names no file"));
}

TEST(AppendedFile, GrowsAtItsEndAndIsCut) {
  const TemporaryFolder folder;
  const fs::path path = folder / "log";
  {
    AppendedFile file(path);
    file.append("one\n");
    EXPECT_EQ(content(path), "one\n");  // without waiting for the end
    file.append("two\n");
  }
  AppendedFile file(path);
  EXPECT_EQ(file.size_bytes(), 8);
  std::array<char, 64> buffer{};
  EXPECT_EQ(file.read(2, std::span(buffer).first(3)), "e\nt");
  EXPECT_EQ(file.read(4, buffer), "two\n");
  file.cut(4);
  file.append("three\n");
  EXPECT_EQ(content(path), "one\nthree\n");
  const ArmedDisk disk;
  file.sync();
  EXPECT_THAT(faulty_disk().log, ElementsAre("fsync"));
}

TEST(AppendedFile, OpensRegularFilesAlone) {
  const TemporaryFolder folder;
  put(folder / "target", "text");
  fs::create_symlink(folder / "target", folder / "link");
  fs::create_symlink("/dev/null", folder / "device");
  fs::create_directory(folder / "folder");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> kinds = {{"link", "a symbolic link"},
                                                                  {"device", "a symbolic link"},
                                                                  {"folder", "a folder"},
                                                                  {"pipe", "a named pipe"}};
  for (const auto& [name, kind] : kinds) {
    const std::string message =
        fmt::format("cannot write {}: it is {}, not a regular file", (folder / name).string(), kind);
    EXPECT_EQ(error_of([&] { AppendedFile file(folder / name); }), message);
    EXPECT_EQ(error_of([&] { AppendedFile::check_kind(folder / name); }), message);
  }
  EXPECT_EQ(content(folder / "target"), "text");
  AppendedFile::check_kind(folder / "target");
  AppendedFile::check_kind(folder / "missing");
  EXPECT_FALSE(fs::exists(folder / "missing"));
  EXPECT_THAT(error_of([&] { AppendedFile file(folder / "no/log"); }),
              HasSubstr("No such file or directory"));
}

TEST(AppendedFile, ErrorsNamePathAndReason) {
  const TemporaryFolder folder;
  AppendedFile file(folder / "log");
  const auto message = [&](auto call) {
    return error_of([&] {
      const ArmedDisk disk(1, ENOSPC);
      call();
    });
  };
  const std::string wrote =
      fmt::format("cannot write {}: No space left on device", (folder / "log").string());
  EXPECT_EQ(message([&] { file.append("x"); }), wrote);
  EXPECT_THAT(message([&] { file.sync(); }), HasSubstr("cannot sync"));
  file.append("text");
  EXPECT_EQ(message([&] { file.cut(2); }), wrote);
  EXPECT_EQ(content(folder / "log"), "text");
}

// What a hard link, such as that of a backup, leads to is not changed.
TEST(AppendedFile, IsCutInACopy) {
  for (const std::int64_t kept : {0, 4, 8, 100}) {
    const TemporaryFolder folder;
    put(folder / "log", "one\ntwo\n");
    fs::create_hard_link(folder / "log", folder / "backup");
    AppendedFile file(folder / "log");
    file.cut(kept);
    file.append("three\n");
    EXPECT_EQ(content(folder / "log"),
              std::string("one\ntwo\n").substr(0, static_cast<std::size_t>(kept)) + "three\n");
    EXPECT_EQ(content(folder / "backup"), "one\ntwo\n");
    EXPECT_THAT(names(folder.path()), ElementsAre("backup", "log"));
    const ArmedDisk disk;
    file.cut(100);  // nothing to do: it has one name, and everything is kept
    EXPECT_THAT(faulty_disk().log, ElementsAre());
  }
}

TEST(AppendedFile, ANewNameIsSynced) {
  const TemporaryFolder folder;
  const ArmedDisk disk;
  { const AppendedFile file(folder / "log"); }
  EXPECT_THAT(faulty_disk().log, ElementsAre("fsync"));
  { const AppendedFile file(folder / "log"); }
  EXPECT_THAT(faulty_disk().log, ElementsAre("fsync"));
}

TEST(AppendedFile, IsAPersonsMistakeOnlyBeforeItWasOpen) {
  const TemporaryFolder folder;
  AppendedFile file(folder / "log");
  fs::remove(folder / "log");
  fs::create_symlink("elsewhere", folder / "log");
  EXPECT_EQ(kind_of([&] { file.append("x"); }), ErrorKind::runtime);
  EXPECT_EQ(kind_of([&] { AppendedFile again(folder / "log"); }), ErrorKind::input);
  put(folder / "read-only", "x");
  forbid_writing(folder / "read-only");
  const WithoutPrivileges user(folder);
  EXPECT_EQ(kind_of([&] { AppendedFile again(folder / "read-only"); }), ErrorKind::input);
}

TEST(AppendedFile, SeesThatItsFolderIsGone) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_symlink(folder / "real", folder / "run");  // the name may be a link
  AppendedFile file(folder / "run/log");
  file.append("one\n");
  file.check_folder();
  fs::rename(folder / "real", folder / "away");
  const std::string gone =
      fmt::format("{} is gone: it was removed, renamed or replaced while this run was writing there",
                  (folder / "run").string());
  EXPECT_EQ(error_of([&] { file.append("two\n"); }), gone);
  fs::create_directory(folder / "real");  // another folder of that name
  EXPECT_EQ(error_of([&] { file.check_folder(); }), gone);
  EXPECT_EQ(content(folder / "away/log"), "one\n");
  EXPECT_THAT(names(folder / "real"), ElementsAre());
}

TEST(AppendedFile, BeginsAnewWhereTheFileAloneIsMovedAway) {
  const TemporaryFolder folder;
  AppendedFile file(folder / "log");
  file.append("one\n");
  fs::rename(folder / "log", folder / "log.1");
  file.append("two\n");
  EXPECT_EQ(content(folder / "log.1"), "one\n");
  EXPECT_EQ(content(folder / "log"), "two\n");
}

// Whatever has the name, or the temporary name, is said and left as it is.
TEST(WriteFile, ReplacesRegularFilesOnly) {
  const TemporaryFolder folder;
  put(folder / "precious", "kept");
  fs::create_symlink("precious", folder / "link");
  fs::create_symlink("nowhere", folder / "dangling");
  fs::create_directory(folder / "sub");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> kinds = {{"link", "it is a symbolic link"},
                                                                  {"dangling", "it is a symbolic link"},
                                                                  {"sub", "it is a folder"},
                                                                  {"pipe", "it is a named pipe"}};
  for (const auto& [name, kind] : kinds) {
    EXPECT_THAT(error_of([&] { write_file(folder / name, "x"); }), HasSubstr(kind));
    EXPECT_THAT(error_of([&] { check_can_write(folder / name); }), HasSubstr(kind));
    fs::rename(folder / name, folder / ".file.tmp");
    EXPECT_THAT(error_of([&] { write_file(folder / "file", "x"); }), HasSubstr(kind));
    EXPECT_THAT(error_of([&] { check_can_write(folder / "file"); }), HasSubstr(kind));
    fs::rename(folder / ".file.tmp", folder / name);
  }
  EXPECT_EQ(content(folder / "precious"), "kept");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_THAT(names(folder.path()), ElementsAre("dangling", "link", "pipe", "precious", "sub"));
  EXPECT_THAT(error_of([&] { FolderWriter writer(folder / "link"); }), HasSubstr("it is a symbolic link"));
  EXPECT_THAT(error_of([&] { check_can_write(folder / std::string(252, 'x')); }), HasSubstr("name too long"));
}

TEST(WriteFile, WritesThroughNoHardLink) {
  const TemporaryFolder folder;
  put(folder / "precious", "kept");
  fs::create_hard_link(folder / "precious", folder / ".file.tmp");
  fs::create_hard_link(folder / "precious", folder / "file");
  write_file(folder / "file", "new");
  EXPECT_EQ(content(folder / "file"), "new");
  EXPECT_EQ(content(folder / "precious"), "kept");
  EXPECT_THAT(names(folder.path()), ElementsAre("file", "precious"));
}

void write_pair(const fs::path& path, std::string_view text) {
  FolderWriter writer(path);
  write_file(writer.folder() / "a", text);
  write_file(writer.folder() / "b", text);
  writer.commit();
}

// "neither" where the folder is not there, "torn" where its files differ.
std::string read_pair(const fs::path& path) {
  if (!fs::exists(path)) return "neither";
  const std::string a = content(path / "a");
  return a == content(path / "b") && names(path).size() == 2 ? a : "torn";
}

TEST(FolderWriter, AppearsWholeAndReplaces) {
  const TemporaryFolder folder;
  const fs::path path = folder / "step";
  {
    FolderWriter abandoned(path);
    write_file(abandoned.folder() / "a", "x");
    EXPECT_FALSE(fs::exists(path));
    EXPECT_THAT(error_of([&] { FolderWriter second(path); }), HasSubstr("another process is writing"));
  }
  EXPECT_THAT(names(folder.path()), ElementsAre());
  write_pair(path, "first");
  EXPECT_EQ(read_pair(path), "first");
  write_pair(path, "second");
  EXPECT_EQ(read_pair(path), "second");
  EXPECT_THAT(names(folder.path()), ElementsAre("step"));
}

TEST(FolderWriter, ReplacesWhatItCannotRemove) {
  const TemporaryFolder folder;
  const WithoutPrivileges user(folder);
  write_pair(folder / "step", "before");
  forbid_writing(folder / "step");
  write_pair(folder / "step", "after");
  EXPECT_EQ(read_pair(folder / "step"), "after");
  EXPECT_EQ(read_pair(folder / ".step.tmp"), "before");
  allow_writing(folder / ".step.tmp");
}

TEST(FolderWriter, SyncsEverythingBeforeTheRename) {
  const TemporaryFolder folder;
  FolderWriter writer(folder / "step");
  put(writer.folder() / "a", "x");
  put(writer.folder() / "b", "x");
  const ArmedDisk disk;
  writer.commit();
  EXPECT_THAT(faulty_disk().log, ElementsAre("fsync", "fsync", "fsync", "rename", "fsync"));
}

TEST(FolderWriter, LosesNothingWhereverTheDiskFails) {
  const TemporaryFolder folder;
  const fs::path path = folder / "step";
  bool failed = true;
  for (int call = 1; failed; ++call) {
    write_pair(path, "before");
    try {
      const ArmedDisk disk(call);
      write_pair(path, "after");
      failed = false;
      EXPECT_GT(call, 13);  // mkdir, four a file, three syncs, the exchange, the sync of the folder
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("Input/output error"));
      EXPECT_THAT(error.what(), HasSubstr(folder.path().string()));
    }
    EXPECT_THAT(read_pair(path), testing::AnyOf("before", "after")) << call;
  }
}

// A child that dies before its n-th call, for every n until one lives to the end.
TEST(FolderWriter, LosesNothingWhereverItIsKilled) {
  for (const bool replaces : {false, true}) {
    const TemporaryFolder folder;
    bool killed = true;
    int call = 1;
    for (; killed; ++call) {
      std::error_code ignored;
      if (!replaces) fs::remove_all(folder / "step", ignored);
      if (replaces) write_pair(folder / "step", "before");
      const pid_t child = fork();
      if (child == 0) {
        faulty_disk() = {.kill_at = call, .armed = true, .log = {}};
        write_pair(folder / "step", "after");
        _exit(0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      EXPECT_THAT(read_pair(folder / "step"), testing::AnyOf(replaces ? "before" : "neither", "after"))
          << call;
      write_pair(folder / "step", "next");  // takes over whatever was left
      EXPECT_EQ(read_pair(folder / "step"), "next") << call;
      EXPECT_THAT(names(folder.path()), ElementsAre("step")) << call;
    }
    EXPECT_GT(call, 13);
  }
}

TEST(FolderLock, OneHolderAtATime) {
  const TemporaryFolder folder;
  {
    FolderLock first(folder.path());
    const std::string message = error_of([&] { FolderLock second(folder.path()); });
    EXPECT_THAT(message, HasSubstr(folder.path().string()));
    EXPECT_THAT(message, HasSubstr(fmt::format("in use by process {} on host ", getpid())));
    FolderLock moved = std::move(first);
    EXPECT_THAT(error_of([&] { FolderLock second(folder.path()); }), HasSubstr("in use"));
    EXPECT_THAT(names(folder.path()), ElementsAre(".lock"));
  }
  EXPECT_THAT(names(folder.path()), ElementsAre());
  EXPECT_THAT(error_of([&] { FolderLock lock(folder / "none"); }), HasSubstr("none/.lock: No such file"));
}

TEST(FolderLock, AFolderThatMayNotBeWrittenIsAPersonsMistake) {
  const TemporaryFolder folder;
  const WithoutPrivileges user(folder);
  forbid_writing(folder.path());
  EXPECT_EQ(kind_of([&] { FolderLock lock(folder.path()); }), ErrorKind::input);
  allow_writing(folder.path());
}

TEST(FolderLock, EndsWithItsProcess) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder.path());
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_THAT(content(folder / ".lock"), HasSubstr(fmt::format("process {} ", child)));  // left behind
  const FolderLock lock(folder.path());
  EXPECT_THAT(content(folder / ".lock"), HasSubstr(fmt::format("process {} ", getpid())));
}

TEST(FolderLock, DoesNotRemoveTheLockOfAnother) {
  const TemporaryFolder folder;
  std::optional<FolderLock> first(folder.path());
  fs::remove(folder / ".lock");  // by hand, while it is held
  const FolderLock second(folder.path());
  first.reset();
  EXPECT_THAT(error_of([&] { FolderLock third(folder.path()); }), HasSubstr("in use"));
}

TEST(FolderLock, WritesToAFileOfItsOwnAlone) {
  const TemporaryFolder folder;
  put(folder / "precious", "text");
  const auto refused = [&] {
    const std::string message = error_of([&] { FolderLock lock(folder.path()); });
    EXPECT_EQ(content(folder / "precious"), "text");
    fs::remove(folder / ".lock");
    return message;
  };
  fs::create_symlink(folder / "precious", folder / ".lock");
  EXPECT_THAT(refused(), HasSubstr("it is a symbolic link"));
  fs::create_hard_link(folder / "precious", folder / ".lock");
  EXPECT_THAT(refused(), HasSubstr("it is a regular file of 2 names"));
  ASSERT_EQ(mkfifo((folder / ".lock").c_str(), 0666), 0);
  EXPECT_THAT(refused(), HasSubstr("it is a named pipe"));
}

TEST(FolderLock, ShowsNoControlCharacters) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  put(folder / ".lock", "\033[2Jx\n");
  EXPECT_THAT(error_of([&] { FolderLock second(folder.path()); }), HasSubstr("in use by another process"));
}

// Each of many processes holds the folder alone, however they come and go.
TEST(FolderLock, ManyProcessesTakeTurns) {
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int held = 0;
    while (held < 20) {
      try {
        const FolderLock lock(folder.path());
        if (mkdir((folder / "alone").c_str(), 0777) != 0 || rmdir((folder / "alone").c_str()) != 0) _exit(1);
        ++held;
      } catch (const Error&) {
        usleep(50);
      }
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(names(folder.path()), ElementsAre());
}

TEST(RemoveFolder, RemovesLeftoversButNotWorkInProgress) {
  const TemporaryFolder folder;
  write_pair(folder / "step", "x");
  remove_folder(folder / "step");
  EXPECT_THAT(names(folder.path()), ElementsAre());
  EXPECT_THAT(error_of([&] { remove_folder(folder / "step"); }), HasSubstr("No such file"));

  fs::create_directory(folder / ".step.tmp");
  put(folder / ".step.tmp/a", "left");
  remove_leftover(folder / "step");
  EXPECT_THAT(names(folder.path()), ElementsAre());
  ASSERT_EQ(mkfifo((folder / ".step.tmp").c_str(), 0600), 0);
  remove_leftover(folder / "step");
  EXPECT_THAT(names(folder.path()), ElementsAre());
  const FolderWriter at_work(folder / "step");
  remove_leftover(folder / "step");
  EXPECT_TRUE(fs::exists(at_work.folder()));
}

TEST(RemoveFolder, LeavesAWriterItsFolder) {
  const TemporaryFolder folder;
  write_pair(folder / "step", "x");
  const FolderWriter at_work(folder / "step");
  EXPECT_THAT(error_of([&] { remove_folder(folder / "step"); }), HasSubstr("another process is writing it"));
  EXPECT_TRUE(fs::exists(at_work.folder()));
  EXPECT_EQ(read_pair(folder / "step"), "x");
}

TEST(RemoveFolder, LeavesWhatMayNotBeChangedUnderItsName) {
  const TemporaryFolder folder;
  write_pair(folder / "step", "x");
  forbid_writing(folder / "step");
  {
    const WithoutPrivileges user(folder);
    EXPECT_THAT(error_of([&] { remove_folder(folder / "step"); }), HasSubstr("step: Permission denied"));
  }
  EXPECT_EQ(read_pair(folder / "step"), "x");
  EXPECT_THAT(names(folder.path()), ElementsAre("step"));
  allow_writing(folder / "step");
  // Of what is no folder the permissions do not matter.
  fs::create_symlink("nowhere", folder / "link");
  put(folder / "file", "");
  forbid_writing(folder / "file");
  for (const char* name : {"link", "file"}) remove_folder(folder / name);
  EXPECT_THAT(names(folder.path()), ElementsAre("step"));
}

TEST(MappedFile, GivesTheBytes) {
  const TemporaryFolder folder;
  const std::string text(100'000, 'x');
  put(folder / "file", text);
  put(folder / "empty", "");
  MappedFile file(folder / "file");
  const auto same = [&](const MappedFile& mapped) {
    return std::string_view(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()) ==
           text;
  };
  EXPECT_TRUE(same(file));
  file.release(file.bytes());
  file.release(file.bytes().subspan(1, 2));
  EXPECT_TRUE(same(file));
  MappedFile moved = std::move(file);
  EXPECT_TRUE(same(moved));
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
  moved = MappedFile(folder / "empty");
  EXPECT_TRUE(moved.bytes().empty());
  EXPECT_THAT(error_of([&] { MappedFile missing(folder / "missing"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { MappedFile directory(folder.path()); }),
              HasSubstr("it is a folder, not a regular file"));
}

TEST(ReadSmallFile, HasACap) {
  const TemporaryFolder folder;
  const std::string text(100'000, 'x');
  put(folder / "file", text);
  EXPECT_EQ(read_small_file(folder / "file", 100'000), text);
  EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file(folder / "file", 99'999)); }),
              HasSubstr("at most 97.66 KiB are read"));
  EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file(folder / "none", 1)); }),
              HasSubstr("No such"));
  EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file("/dev/zero", 1)); }), HasSubstr("a device"));
  EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file(folder.path(), 1)); }), HasSubstr("a folder"));
  fs::create_symlink("file", folder / "link");
  EXPECT_EQ(read_small_file(folder / "link", 100'000), text);
  put(folder / "sparse", "");
  fs::resize_file(folder / "sparse", std::uintmax_t{1} << 40);  // reading it would take hours
  EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file(folder / "sparse", kMiB)); }),
              HasSubstr("it has 1 TiB, and at most 1 MiB are read"));
}

// Opening a pipe for reading waits for somebody who writes.
TEST(ReadFiles, RefuseAPipeAtOnce) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", folder / "link");
  for (const char* name : {"pipe", "link"}) {
    EXPECT_THAT(error_of([&] { static_cast<void>(read_small_file(folder / name, 1)); }),
                HasSubstr("it is a named pipe, not a regular file"));
    EXPECT_THAT(error_of([&] { MappedFile file(folder / name); }), HasSubstr("it is a named pipe"));
  }
}

TEST(IsFolder, IsAnAnswerOrAPlainError) {
  const TemporaryFolder folder;
  put(folder / "file", "x");
  fs::create_symlink(folder.path(), folder / "link");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(is_folder(folder.path()));
  EXPECT_TRUE(is_folder(folder / "link"));
  EXPECT_FALSE(is_folder(folder / "file"));
  EXPECT_FALSE(is_folder(folder / "file/below"));
  EXPECT_FALSE(is_folder(folder / "missing"));
  EXPECT_FALSE(is_folder(std::string(10'000, 'x')));
  EXPECT_THAT(error_of([&] { static_cast<void>(is_folder(folder / "loop")); }), HasSubstr("symbolic links"));
  {
    const ArmedDisk disk;
    create_folders(folder / "a/b/");
    EXPECT_THAT(faulty_disk().log, ElementsAre("mkdir", "fsync", "mkdir", "fsync"));
    create_folders(folder / "a/b");
    EXPECT_EQ(faulty_disk().log.size(), 4);
  }
  create_folders(folder / "a/b/../c");
  EXPECT_TRUE(is_folder(folder / "a/b"));
  EXPECT_TRUE(is_folder(folder / "a/c"));
  EXPECT_THAT(error_of([&] { create_folders(folder / "file/below"); }), HasSubstr("cannot create"));
}

}  // namespace
}  // namespace headroom
