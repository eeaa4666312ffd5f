// A folder of a test's own, removed with everything in it when the test ends.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "headroom/core/error.h"

namespace headroom {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "headroom-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder " << name;
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Permissions count until the scope ends, also where root runs the tests: the folder and what is in it then
// belong to a user without rights, and so does the process.
class WithoutPrivileges {
 public:
  explicit WithoutPrivileges(const TemporaryFolder& folder) {
    if (geteuid() != 0) return;
    constexpr uid_t kNobody = 65534;
    bool done = chown(folder.path().c_str(), kNobody, kNobody) == 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
      done = lchown(entry.path().c_str(), kNobody, kNobody) == 0 && done;
    done = seteuid(kNobody) == 0 && done;
    prctl(PR_SET_DUMPABLE, 1);  // or /proc/self would not be its own
    EXPECT_TRUE(done) << "the user cannot be changed";
    changed_ = true;
  }
  WithoutPrivileges(const WithoutPrivileges&) = delete;
  WithoutPrivileges& operator=(const WithoutPrivileges&) = delete;
  ~WithoutPrivileges() {
    if (!changed_) return;
    EXPECT_EQ(seteuid(0), 0);
    prctl(PR_SET_DUMPABLE, 1);
  }

 private:
  bool changed_ = false;
};

inline void forbid_writing(const std::filesystem::path& path) {
  constexpr auto kWrite = std::filesystem::perms::owner_write | std::filesystem::perms::group_write |
                          std::filesystem::perms::others_write;
  std::filesystem::permissions(path, kWrite, std::filesystem::perm_options::remove);
}
inline void allow_writing(const std::filesystem::path& path) {
  std::filesystem::permissions(path, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::set<std::string> names(const std::filesystem::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    found.insert(entry.path().filename().string());
  return found;
}

// The message of the Error that a call throws; fails the test where it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

// The kind of the Error that a call throws; fails the test where it throws none.
template <class Call>
ErrorKind kind_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

}  // namespace headroom
