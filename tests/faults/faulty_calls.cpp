// Loaded before a program (LD_PRELOAD) to make it die, or its disk fail, at a chosen call of the system.
// Counts every call that writes to a file system, whatever library makes it: not those on descriptors 0 to 2.
//   HEADROOM_FAULT=kill:N     dies before the N-th call; a write is done by half
//   HEADROOM_FAULT=error:N    the N-th call fails with EIO, a write after half of it
//   HEADROOM_FAULT=full:N     from the N-th call on whatever needs space fails with ENOSPC
//   HEADROOM_FAULT=count      none
// The file HEADROOM_FAULT_MARK is made when a fault is struck; of a process that only counts it is the
// number.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

enum class Mode { none, count, kill, error, full };

struct Fault {
  Mode mode = Mode::none;
  long at = 0;

  Fault() {
    const char* text = std::getenv("HEADROOM_FAULT");
    if (text == nullptr) return;
    if (const char* colon = std::strchr(text, ':')) at = std::strtol(colon + 1, nullptr, 10);
    if (std::strncmp(text, "count", 5) == 0) mode = Mode::count;
    if (std::strncmp(text, "kill", 4) == 0) mode = Mode::kill;
    if (std::strncmp(text, "error", 5) == 0) mode = Mode::error;
    if (std::strncmp(text, "full", 4) == 0) mode = Mode::full;
  }
};

const Fault& fault() {
  static const Fault fault;
  return fault;
}

std::atomic<long> calls{0};

void mark(const char* text) {
  const char* path = std::getenv("HEADROOM_FAULT_MARK");
  if (path == nullptr) return;
  const long file = syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  if (file < 0) return;
  syscall(SYS_write, file, text, std::strlen(text));
  syscall(SYS_close, file);
}

__attribute__((destructor)) void write_count() {
  if (fault().mode != Mode::count) return;
  char text[32];
  std::snprintf(text, sizeof(text), "%ld", calls.load());
  mark(text);
}

// Whether the call is the one that is struck. Kills where that is the fault, after before_death().
template <class BeforeDeath>
bool struck(bool needs_space, BeforeDeath before_death) {
  const Mode mode = fault().mode;
  const long at = fault().at;
  if (mode == Mode::none) return false;
  const long call = ++calls;
  if (mode == Mode::count || (mode == Mode::full ? call < at || !needs_space : call != at)) return false;
  mark("");
  if (mode == Mode::full) {
    errno = ENOSPC;
    return true;
  }
  before_death();
  if (mode == Mode::kill) kill(getpid(), SIGKILL);
  errno = EIO;
  return true;
}
bool struck(bool needs_space) {
  return struck(needs_space, [] {});
}

template <class... Args>
long passed(bool needs_space, long number, Args... args) {
  return struck(needs_space) ? -1 : syscall(number, args...);
}

int opened(int folder, const char* path, int flags, va_list more) {
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = creates ? va_arg(more, mode_t) : 0;
  if (creates && struck(true)) return -1;
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t size) {
  if (file <= 2) return syscall(SYS_write, file, data, size);
  if (struck(true, [&] { syscall(SYS_write, file, data, size / 2); })) return -1;
  return syscall(SYS_write, file, data, size);
}
ssize_t writev(int file, const iovec* parts, int count) {
  if (file > 2 && struck(true)) return -1;
  return syscall(SYS_writev, file, parts, count);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  return passed(true, SYS_pwrite64, file, data, size, offset);
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  return passed(true, SYS_pwrite64, file, data, size, offset);
}
int fsync(int file) {
  return static_cast<int>(passed(false, SYS_fsync, file));
}
int fdatasync(int file) {
  return static_cast<int>(passed(false, SYS_fdatasync, file));
}
int ftruncate(int file, off_t size) noexcept {
  return static_cast<int>(passed(false, SYS_ftruncate, file, size));
}
int ftruncate64(int file, off64_t size) noexcept {
  return static_cast<int>(passed(false, SYS_ftruncate, file, size));
}
int truncate(const char* path, off_t size) noexcept {
  return static_cast<int>(passed(false, SYS_truncate, path, size));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(passed(true, SYS_mkdir, path, mode));
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return static_cast<int>(passed(true, SYS_mkdirat, folder, path, mode));
}
int rmdir(const char* path) noexcept {
  return static_cast<int>(passed(false, SYS_rmdir, path));
}
int unlink(const char* path) noexcept {
  return static_cast<int>(passed(false, SYS_unlink, path));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return static_cast<int>(passed(false, SYS_unlinkat, folder, path, flags));
}
int remove(const char* path) noexcept {
  if (struck(false)) return -1;
  if (syscall(SYS_unlink, path) == 0) return 0;
  return errno == EISDIR ? static_cast<int>(syscall(SYS_rmdir, path)) : -1;
}
int rename(const char* from, const char* to) noexcept {
  return static_cast<int>(passed(true, SYS_rename, from, to));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return static_cast<int>(passed(true, SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int file = opened(AT_FDCWD, path, flags, more);
  va_end(more);
  return file;
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int file = opened(AT_FDCWD, path, flags, more);
  va_end(more);
  return file;
}
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int file = opened(folder, path, flags, more);
  va_end(more);
  return file;
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int file = opened(folder, path, flags, more);
  va_end(more);
  return file;
}
// std::ofstream opens with these.
std::FILE* fopen(const char* path, const char* mode) {
  using Open = std::FILE* (*)(const char*, const char*);
  static const Open next = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "fopen"));
  if (std::strpbrk(mode, "wa") != nullptr && struck(true)) return nullptr;
  return next(path, mode);
}
std::FILE* fopen64(const char* path, const char* mode) {
  using Open = std::FILE* (*)(const char*, const char*);
  static const Open next = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "fopen64"));
  if (std::strpbrk(mode, "wa") != nullptr && struck(true)) return nullptr;
  return next(path, mode);
}

}  // extern "C"
