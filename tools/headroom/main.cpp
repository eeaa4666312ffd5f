#include <iostream>

#include "cli.h"

int main(int argc, char** argv) {
  return headroom::run_cli(argc, argv, std::cout, std::cerr);
}
