// The one way to a file. What is written appears whole, under its name, or not at all: bytes go to a
// temporary name beside it and are synced before the rename, the folder after it. A writer that is killed at
// any moment leaves what was there before and a temporary that the next writer of that name removes.
// AppendedFile alone grows in place. Only regular files are read and written; links are followed for reading
// alone. Errors name path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "headroom/core/error.h"

namespace headroom {

// The temporary name beside a path: folder/.NAME.tmp
[[nodiscard]] std::filesystem::path temporary_path(const std::filesystem::path& path);

// Whether a folder has the name; links are followed. An error where that cannot be known.
[[nodiscard]] bool is_folder(const std::filesystem::path& path);
// Creates the folder and those around it, where they are not there, and syncs the name of each that it made.
void create_folders(const std::filesystem::path& path, ErrorKind kind = ErrorKind::input);

// Refuses what FileWriter could not write, before the work whose result is to be written: a folder that is
// not there or cannot be written to, and a name that a link, a device or anything but a regular file has.
void check_can_write(const std::filesystem::path& path);

// An open file or folder, closed when it goes.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Opens a file or a folder for reading; the path is taken from `folder` where one is given. A signal does not
// interrupt it, and a named pipe is not waited for. Where it fails the descriptor is empty and errno says
// why.
[[nodiscard]] Descriptor open_to_read(const std::filesystem::path& path, const Descriptor& folder = {});
// Reads what the file has from the offset on, as much as the span holds; a signal does not interrupt it.
// Returns the number of bytes, which is smaller at the end of the file alone, or -1 with the reason in errno.
[[nodiscard]] std::int64_t read_at(const Descriptor& file, std::span<std::byte> into, std::int64_t offset);

// One file in the making; without commit it was never there. Two writers of one name: the second is refused.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  FileWriter(FileWriter&&) noexcept = default;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // synced, renamed to its name, and the name synced

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

void write_file(const std::filesystem::path& path, std::string_view text);

// A file that grows at its end while others read it, as a log does. What is appended is there for readers at
// once, and on the disk after sync(). Only a regular file is appended to; a link in its place is not
// followed. Errors of the constructor that a person can mend (another kind of file, no permission) are input
// errors; those of a file that was open already are runtime errors.
class AppendedFile {
 public:
  explicit AppendedFile(std::filesystem::path path);  // made where it is missing

  // Refuses a name that something other than a regular file has, without opening anything. Whether the file
  // may be written is known only when it is opened.
  static void check_kind(const std::filesystem::path& path);

  [[nodiscard]] std::int64_t size_bytes() const;
  // The bytes from the offset on, as many as the buffer holds and the file has.
  [[nodiscard]] std::string_view read(std::int64_t offset, std::span<char> buffer) const;
  // Keeps so many bytes of it. Where that removes some, or the file has other names too (a backup of hard
  // links), the kept bytes are copied to a new file that replaces it: bytes that were there are never
  // changed.
  void cut(std::int64_t size_bytes);
  // Where the file alone was moved away, the text begins a new one. The folder has to be there.
  void append(std::string_view text);
  void sync() const;

  // A runtime error unless the folder's name still leads to the folder that the file was opened in.
  void check_folder() const;

 private:
  void open(ErrorKind kind);

  std::filesystem::path path_;
  Descriptor folder_;
  Descriptor file_;
};

// One folder in the making: files go into folder() and appear together. A folder that has the name already is
// exchanged for the new one in a single step, then removed as far as that is possible.
class FolderWriter {
 public:
  explicit FolderWriter(std::filesystem::path path);
  FolderWriter(FolderWriter&&) noexcept = default;
  FolderWriter& operator=(FolderWriter&&) = delete;
  ~FolderWriter();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  void commit();  // every file within synced, then the folder, renamed, and the name synced

 private:
  std::filesystem::path path_;
  std::filesystem::path folder_;
  Descriptor lock_;
};

// Keeps a folder for one process: FOLDER/.lock is locked for as long as this lives, and removed with it.
// Where another process holds it, that is an input error which names the process and its host. The lock ends
// with its process, however that ends. It is a flock: Linux passes it on to an NFS server, so hosts exclude
// each other there too; a file system without locks excludes nobody.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);  // which has to be there
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

// Removes a folder in such an order that no part of it is ever left under its name. One that may not be
// changed, and one that a writer is replacing now, stays as it is: that is a runtime error.
void remove_folder(const std::filesystem::path& path);

// Removes what a killed writer left behind under temporary_path(path); nothing where a live one is at work.
void remove_leftover(const std::filesystem::path& path);

// A file's bytes, read on demand. Whoever shortens the file meanwhile ends the reader: files that are
// replaced as above never shrink.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // These bytes were read and leave this process's memory; reading them again brings them back.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// The whole of a file that is meant to be small; a larger one is refused before any of it is read.
[[nodiscard]] std::string read_small_file(const std::filesystem::path& path, std::int64_t max_bytes);

}  // namespace headroom
