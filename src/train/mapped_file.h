// A file's bytes in the address space, read only. Pages come from the file when they are touched and may go
// again, so a file of any size takes no memory of the run's.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "headroom/core/error.h"

namespace headroom {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }

  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    check(file.number() >= 0, "'{}' cannot be read: {}", path, std::strerror(errno));
    struct stat status {};
    const bool known = ::fstat(file.number(), &status) == 0;
    check(known, "'{}' cannot be read: {}", path, std::strerror(errno));
    if (status.st_size == 0) return;  // no pages to map
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.number(), 0);
    check(data != MAP_FAILED, "'{}' cannot be mapped: {}", path, std::strerror(errno));
    data_ = data;
    bytes_ = status.st_size;
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
  }

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  template <class T>
  [[nodiscard]] const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace headroom
