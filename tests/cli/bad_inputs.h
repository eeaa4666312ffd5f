// Command lines and files that a person, a script or a broken disk may come up with: one table for the test
// in this process (bad_input_test.cpp, also under sanitizers) and the one that runs the program itself
// (bad_input_process_test.cpp, with limits on time and memory).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace headroom {

struct BadInput {
  std::vector<std::string> arguments;
  std::string named;  // has to stand in the message
  int code = 2;
  double seconds = 2;  // the program's own limit
  std::vector<std::pair<std::string, std::string>> environment = {};
};

// Every option of every command with values that it must not take, and combinations that a mode would ignore.
std::vector<BadInput> bad_values(const std::filesystem::path& folder);
// Files that are not what they should be; they are made in the folder.
std::vector<BadInput> bad_files(const std::filesystem::path& folder);

// The command line in one line, for messages.
std::string describe(const BadInput& input);
// What is wrong with what the program did: empty where nothing is.
std::string fault(const BadInput& input, int code, const std::string& out, const std::string& err);

}  // namespace headroom
