// The command line in this process, with what it printed.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli.h"

namespace headroom {

struct CliResult {
  int code = 0;
  std::string out;
  std::string err;
};

inline CliResult run_command(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"headroom"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_cli(static_cast<int>(argv.size()), argv.data(), out, err);
  return {code, out.str(), err.str()};
}

}  // namespace headroom
