#include "core/faulty_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace headroom {

FaultyDisk& faulty_disk() {
  static FaultyDisk disk;
  return disk;
}

}  // namespace headroom

namespace {

enum class Fate { pass, fail, die };

Fate fate(const char* call) {
  headroom::FaultyDisk& disk = headroom::faulty_disk();
  if (!disk.armed) return Fate::pass;
  ++disk.calls;
  disk.log.emplace_back(call);
  if (disk.calls == disk.kill_at) return Fate::die;
  if (disk.calls != disk.fail_at) return Fate::pass;
  errno = disk.error;
  return Fate::fail;
}

template <class... Args>
long pass_on(const char* call, long number, Args... args) {
  const Fate what = fate(call);
  if (what == Fate::die) kill(getpid(), SIGKILL);
  return what == Fate::fail ? -1 : syscall(number, args...);
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, std::size_t size) {
  const Fate what = fate("write");
  if (what == Fate::die) {
    syscall(SYS_write, file, data, size / 2);
    kill(getpid(), SIGKILL);
  }
  return what == Fate::fail ? -1 : syscall(SYS_write, file, data, size);
}
int fsync(int file) {
  return static_cast<int>(pass_on("fsync", SYS_fsync, file));
}
int ftruncate(int file, off_t size) noexcept {
  return static_cast<int>(pass_on("ftruncate", SYS_ftruncate, file, size));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(pass_on("mkdir", SYS_mkdir, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  return static_cast<int>(pass_on("rename", SYS_rename, from, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return static_cast<int>(pass_on("renameat2", SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // extern "C"
