#include "headroom/core/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "headroom/core/bytes.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Reading what a person named is their mistake; failing to write is the system's.
[[noreturn]] void fail_to(std::string_view what, const fs::path& path, int error,
                          ErrorKind kind = ErrorKind::runtime) {
  fail(kind, "cannot {} {}: {}", what, path.string(), reason(error));
}

// A name that a person chose and that may not be written is their mistake; a disk that fails is not.
ErrorKind kind_of_error(int error) {
  const bool refused = error == EACCES || error == EPERM || error == EROFS;
  return refused ? ErrorKind::input : ErrorKind::runtime;
}

template <class Call>
auto retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Descriptor open_file(const fs::path& path, int flags) {
  return Descriptor(retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void sync(const Descriptor& file, const fs::path& path) {
  if (retried([&] { return ::fsync(file.number()); }) != 0) fail_to("sync", path, errno);
}

void sync_path(const fs::path& path) {
  const Descriptor file = open_file(path, O_RDONLY);
  if (!file) fail_to("open", path, errno);
  sync(file, path);
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = retried([&] { return ::write(file.number(), bytes.data(), bytes.size()); });
    if (written < 0) fail_to("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

struct stat status_of(const Descriptor& file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) fail_to("read", path, errno);
  return status;
}

std::string_view kind_of(mode_t mode) {
  return S_ISREG(mode)    ? "a regular file"
         : S_ISDIR(mode)  ? "a folder"
         : S_ISLNK(mode)  ? "a symbolic link"
         : S_ISFIFO(mode) ? "a named pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

void check_regular(const struct stat& status, const fs::path& path) {
  check(S_ISREG(status.st_mode), "cannot read {}: it is {}, not a regular file", path.string(),
        kind_of(status.st_mode));
}

// Looked at before it is opened: opening a named pipe waits for its writer, and opening a device may make it
// do something. And again afterwards, in case it was exchanged in between.
Descriptor open_regular(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_to("read", path, errno, ErrorKind::input);
  check_regular(status, path);
  Descriptor file = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file) fail_to("read", path, errno, ErrorKind::input);
  check_regular(status_of(file, path), path);
  return file;
}

// Refuses to write where something of another kind has the name; links are not followed.
void check_kind(const fs::path& path, mode_t wanted, ErrorKind kind = ErrorKind::input) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;  // nothing there, or nothing that could be opened either
  if ((status.st_mode & S_IFMT) == wanted) return;
  fail(kind, "cannot write {}: it is {}, not {}", path.string(), kind_of(status.st_mode), kind_of(wanted));
}

// The lock goes with its process, so a leftover is told from work in progress. File systems without locks
// go without.
bool lock(const Descriptor& file) {
  return retried([&] { return ::flock(file.number(), LOCK_EX | LOCK_NB); }) == 0 || errno != EWOULDBLOCK;
}

bool still_named(const Descriptor& file, const fs::path& path) noexcept {
  struct stat named {};
  struct stat held {};
  if (::lstat(path.c_str(), &named) != 0 || ::fstat(file.number(), &held) != 0) return false;
  return named.st_ino == held.st_ino && named.st_dev == held.st_dev;
}

[[noreturn]] void fail_taken(const fs::path& path) {
  fail(ErrorKind::runtime, "cannot write {}: another process is writing it now", path.string());
}

// The process and host that a lock file names, for a message.
std::string holder(const Descriptor& file) {
  std::array<char, 512> text{};
  const ssize_t size = retried([&] { return ::pread(file.number(), text.data(), text.size(), 0); });
  const std::string_view line(text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  const auto is_plain = [](char character) { return character >= ' ' && character <= '~'; };
  // Who has just locked it may not have written its name yet.
  if (!line.ends_with('\n') || !std::ranges::all_of(line.substr(0, line.size() - 1), is_plain)) {
    return "another process";
  }
  return std::string(line.substr(0, line.size() - 1));
}

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("process {} on host {}", ::getpid(), host.data());
}

void remove_quietly(const fs::path& path) noexcept {
  std::error_code ignored;  // the next writer of the name takes the leftover over
  fs::remove_all(path, ignored);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_to("remove", path, error.value());
}

// Whether the temporary name of the path is free now: what a killed writer left there is removed, and a
// writer at work keeps it.
bool free_temporary(const fs::path& path) {
  const fs::path leftover = temporary_path(path);
  const Descriptor held = open_file(leftover, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  // Between open and lock the name may have become that of another writer.
  if (held && (!lock(held) || !still_named(held, leftover))) return false;
  remove_tree(leftover);
  return true;
}

// Removes the temporary that a killed writer of the path left. It is never written to: its bytes may have
// another name.
void remove_left_file(const fs::path& path) {
  const fs::path temporary = temporary_path(path);
  check_kind(temporary, S_IFREG);
  const Descriptor left = open_file(temporary, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!left && errno == ENOENT) return;
  if (!left) fail_to("write", temporary, errno);
  if (!lock(left)) fail_taken(path);
  if (!still_named(left, temporary)) return;
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) fail_to("remove", temporary, errno);
}

Descriptor create_temporary(const fs::path& path) {
  const fs::path temporary = temporary_path(path);
  for (;;) {
    Descriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (!file && errno != EEXIST) fail_to("write", path, errno);
    if (!file) {
      remove_left_file(path);
      continue;
    }
    if (!lock(file)) fail_taken(path);
    // Another writer may have taken it for a leftover between our open and our lock: then try again.
    if (still_named(file, temporary)) return file;
  }
}

}  // namespace

fs::path temporary_path(const fs::path& path) {
  return folder_of(path) / fmt::format(".{}.tmp", path.filename().string());
}

bool is_folder(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
  if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG) {
    fail_to("read", path, errno, ErrorKind::input);
  }
  return false;
}

void create_folders(const fs::path& path, ErrorKind kind) {
  if (path.empty() || is_folder(path)) return;
  create_folders(path.parent_path(), kind);
  if (!path.has_filename()) return;  // "run/" is made with "run"
  std::error_code error;
  const bool made = fs::create_directory(path, error);
  if (error) fail_to("create", path, error.value(), kind);
  if (made) sync_path(folder_of(path));
}

void check_can_write(const fs::path& path) {
  check(path.has_filename(), "'{}' names no file", path.string());
  const fs::path folder = folder_of(path);
  check(is_folder(folder), "cannot write {}: there is no folder {}", path.string(), folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_to("write", path, errno, ErrorKind::input);
  const fs::path temporary = temporary_path(path);
  struct stat ignored {};
  if (::lstat(temporary.c_str(), &ignored) != 0 && errno != ENOENT) {
    fail_to("write", path, errno, ErrorKind::input);
  }
  check_kind(path, S_IFREG);
  check_kind(temporary, S_IFREG);
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor open_to_read(const fs::path& path, const Descriptor& folder) {
  const int from = folder ? folder.number() : AT_FDCWD;
  return Descriptor(
      retried([&] { return ::openat(from, path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
}

std::int64_t read_at(const Descriptor& file, std::span<std::byte> into, std::int64_t offset) {
  std::int64_t done = 0;
  while (done < std::ssize(into)) {
    const auto rest = into.subspan(static_cast<std::size_t>(done));
    const ssize_t got =
        retried([&] { return ::pread(file.number(), rest.data(), rest.size(), offset + done); });
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  check(path_.has_filename(), "'{}' names no file", path_.string());
  check_kind(path_, S_IFREG);
  file_ = create_temporary(path_);
}

FileWriter::~FileWriter() {
  if (file_) remove_quietly(temporary_path(path_));
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_all(file_, bytes, path_);
}

void FileWriter::commit() {
  sync(file_, path_);
  if (::rename(temporary_path(path_).c_str(), path_.c_str()) != 0) fail_to("write", path_, errno);
  file_ = Descriptor();
  sync_path(folder_of(path_));
}

void write_file(const fs::path& path, std::string_view text) {
  FileWriter file(path);
  file.write(text);
  file.commit();
}

AppendedFile::AppendedFile(fs::path path) : path_(std::move(path)) {
  check(path_.has_filename(), "'{}' names no file", path_.string());
  const fs::path folder = folder_of(path_);
  folder_ = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (!folder_) fail_to("open", folder, errno);
  open(ErrorKind::input);
}

void AppendedFile::check_kind(const fs::path& path) {
  headroom::check_kind(path, S_IFREG);
}

void AppendedFile::open(ErrorKind kind) {
  constexpr int kFlags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  headroom::check_kind(path_, S_IFREG, kind);  // before it is opened: devices may do something then
  file_ = open_file(path_, kFlags);
  const bool missing = !file_ && errno == ENOENT;
  if (missing) file_ = open_file(path_, kFlags | O_CREAT);
  if (!file_) fail_to("write", path_, errno, kind == ErrorKind::input ? kind_of_error(errno) : kind);
  if (!S_ISREG(status_of(file_, path_).st_mode)) {
    fail(kind, "cannot write {}: it is not a regular file", path_.string());
  }
  if (missing) headroom::sync(folder_, folder_of(path_));
}

std::int64_t AppendedFile::size_bytes() const {
  return status_of(file_, path_).st_size;
}

std::string_view AppendedFile::read(std::int64_t offset, std::span<char> buffer) const {
  const std::int64_t got = read_at(file_, std::as_writable_bytes(buffer), offset);
  if (got < 0) fail_to("read", path_, errno);
  return {buffer.data(), static_cast<std::size_t>(got)};
}

void AppendedFile::cut(std::int64_t size_bytes) {
  const struct stat status = status_of(file_, path_);
  if (status.st_size <= size_bytes && status.st_nlink <= 1) return;
  FileWriter kept(path_);
  std::array<char, 16 * kKiB> buffer;
  for (std::int64_t done = 0; done < size_bytes;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(size_bytes - done, buffer.size()));
    const std::string_view text = read(done, std::span(buffer).first(wanted));
    if (text.empty()) break;
    kept.write(text);
    done += std::ssize(text);
  }
  kept.commit();
  open(ErrorKind::runtime);
}

void AppendedFile::append(std::string_view text) {
  check_folder();
  if (!still_named(file_, path_)) open(ErrorKind::runtime);
  write_all(file_, std::as_bytes(std::span(text)), path_);
}

void AppendedFile::sync() const {
  headroom::sync(file_, path_);
}

void AppendedFile::check_folder() const {
  const fs::path folder = folder_of(path_);
  if (still_named(folder_, folder / ".")) return;  // the name itself may be a link
  fail(ErrorKind::runtime, "{} is gone: it was removed, renamed or replaced while this run was writing there",
       folder.string());
}

FolderWriter::FolderWriter(fs::path path) : path_(std::move(path)), folder_(temporary_path(path_)) {
  check(path_.has_filename(), "'{}' names no folder", path_.string());
  check_kind(path_, S_IFDIR);
  remove_leftover(path_);
  if (::mkdir(folder_.c_str(), 0777) != 0) {
    if (errno == EEXIST) fail_taken(path_);
    fail_to("write", path_, errno);
  }
  lock_ = open_file(folder_, O_RDONLY | O_DIRECTORY);
  if (!lock_) fail_to("write", path_, errno);
  if (!lock(lock_) || !still_named(lock_, folder_)) {
    lock_ = Descriptor();
    fail_taken(path_);
  }
}

FolderWriter::~FolderWriter() {
  if (lock_) remove_quietly(folder_);
}

void FolderWriter::commit() {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder_, error), end; !error && entry != end;
       entry.increment(error)) {
    sync_path(entry->path());
  }
  if (error) fail_to("read", folder_, error.value());
  sync(lock_, folder_);
  const bool replaces = fs::exists(fs::symlink_status(path_, error));
  const int renamed = replaces
                          ? ::renameat2(AT_FDCWD, folder_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE)
                          : ::rename(folder_.c_str(), path_.c_str());
  if (renamed != 0) fail_to(replaces ? "replace" : "write", path_, errno);
  lock_ = Descriptor();
  sync_path(folder_of(path_));
  if (replaces) remove_quietly(folder_);  // the new one is there, whatever becomes of the old one
}

FolderLock::FolderLock(const fs::path& folder) : path_(folder / ".lock") {
  // The holder removes the file before it lets go: then the lock is of a file without a name, try again.
  do {
    check_kind(path_, S_IFREG);
    file_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (!file_) fail_to("write", path_, errno, kind_of_error(errno));
    const struct stat status = status_of(file_, path_);
    check(S_ISREG(status.st_mode) && status.st_nlink <= 1,
          "cannot write {}: it is {} of {} names; only a regular file of one name is taken", path_.string(),
          kind_of(status.st_mode), status.st_nlink);
    if (!lock(file_)) {
      const Descriptor held = std::exchange(file_, Descriptor());
      fail(ErrorKind::input, "{} is in use by {}; one run at a time may write there", folder.string(),
           holder(held));
    }
  } while (!still_named(file_, path_));
  if (::ftruncate(file_.number(), 0) != 0) fail_to("write", path_, errno);
  const std::string line = this_process() + "\n";
  write_all(file_, std::as_bytes(std::span(line)), path_);
}

FolderLock::~FolderLock() {
  if (file_ && still_named(file_, path_)) ::unlink(path_.c_str());
}

void remove_folder(const fs::path& path) {
  if (!free_temporary(path)) fail_taken(path);
  // Asked before the rename: what cannot be emptied would be hidden by it, and not removed.
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
      ::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    fail_to("remove", path, errno);
  }
  const fs::path leftover = temporary_path(path);
  if (::rename(path.c_str(), leftover.c_str()) != 0) fail_to("remove", path, errno);
  remove_tree(leftover);
}

void remove_leftover(const fs::path& path) {
  static_cast<void>(free_temporary(path));
}

MappedFile::MappedFile(fs::path path) : path_(std::move(path)) {
  const Descriptor file = open_regular(path_);
  const auto size = static_cast<std::size_t>(status_of(file, path_).st_size);
  if (size == 0) return;
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) fail_to("map", path_, errno, ErrorKind::input);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t begin = (first + page - 1) / page * page;
  const std::size_t end = (first + part.size()) / page * page;
  // Advice: the pages are still in the file, so nothing is lost where it is not taken.
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

std::string read_small_file(const fs::path& path, std::int64_t max_bytes) {
  const Descriptor file = open_regular(path);
  const std::int64_t size = status_of(file, path).st_size;
  check(size <= max_bytes, "cannot read {}: it has {}, and at most {} are read", path.string(),
        format_bytes(size), format_bytes(max_bytes));
  std::string text(static_cast<std::size_t>(size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        retried([&] { return ::read(file.number(), text.data() + done, text.size() - done); });
    if (got < 0) fail_to("read", path, errno, ErrorKind::input);
    if (got == 0) break;  // it was cut short meanwhile
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace headroom
