// A disk that fails, or a process that dies, at a chosen call of the system. faulty_disk.cpp stands in for
// write, fsync, rename, renameat2, mkdir and ftruncate of the whole test program and passes them on while
// nothing is chosen.
#pragma once

#include <cerrno>
#include <string>
#include <vector>

namespace headroom {

struct FaultyDisk {
  int fail_at = 0;     // the call that fails, counted from 1; 0: none
  int kill_at = 0;     // the call before which the process dies; a write is done by half
  int error = EIO;     // what a failing call says
  bool armed = false;  // counting
  int calls = 0;
  std::vector<std::string> log;  // "fsync", "rename", ...: while armed
};
FaultyDisk& faulty_disk();

// Counts and fails from here to the end of the scope.
class ArmedDisk {
 public:
  explicit ArmedDisk(int fail_at = 0, int error = EIO) {
    faulty_disk() = {.fail_at = fail_at, .error = error, .armed = true, .log = {}};
  }
  ArmedDisk(const ArmedDisk&) = delete;
  ArmedDisk& operator=(const ArmedDisk&) = delete;
  ~ArmedDisk() { faulty_disk().armed = false; }
};

}  // namespace headroom
