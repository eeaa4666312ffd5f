#include <unistd.h>

#include <csignal>
#include <iostream>

#include "cli.h"
#include "headroom/core/error.h"
#include "output_buffer.h"

int main(int argc, char** argv) {
  if (!headroom::open_standard_descriptors()) return 1;
  // A closed pipe and a file past the limit of its size are errors of writing, so that training saves first.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
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
