// Standard output whose errors are errors: what cannot be written throws a runtime error with the reason,
// once the stream's exceptions() say badbit.
#pragma once

#include <array>
#include <streambuf>

namespace headroom {

class OutputBuffer : public std::streambuf {
 public:
  explicit OutputBuffer(int descriptor);  // a terminal gets every piece of text at once

 protected:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  int descriptor_;
  bool terminal_;
  std::array<char, 1 << 13> text_;
};

// Opens whatever of the descriptors 0, 1 and 2 is closed, so that no file of the run gets its number. Writing
// to an output that was closed is an error; errors that nobody would see are dropped. False where the system
// does not allow it.
[[nodiscard]] bool open_standard_descriptors();

}  // namespace headroom
