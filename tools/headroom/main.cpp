#include <unistd.h>

#include <csignal>
#include <iostream>

#include "cli.h"
#include "headroom/core/error.h"
#include "output_buffer.h"

int main(int argc, char** argv) {
  if (!headroom::open_standard_descriptors()) return 1;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of writing, so that training saves first
  headroom::OutputBuffer buffer(STDOUT_FILENO);
  std::ostream out(&buffer);
  out.exceptions(std::ios::badbit);
  int code = 0;
  try {
    code = headroom::run_cli(argc, argv, out, std::cerr);
    if (out.good()) out.flush();
    return code;
  } catch (const headroom::Error& error) {
    std::cerr << "headroom: " << error.what() << "\n";
    return code == 0 ? static_cast<int>(error.kind()) : code;
  }
}
