#include "output_buffer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "headroom/core/error.h"

namespace headroom {

OutputBuffer::OutputBuffer(int descriptor) : descriptor_(descriptor), terminal_(isatty(descriptor) != 0) {
  setp(text_.data(), text_.data() + text_.size());
}

OutputBuffer::int_type OutputBuffer::overflow(int_type character) {
  sync();
  if (!traits_type::eq_int_type(character, traits_type::eof())) sputc(traits_type::to_char_type(character));
  return traits_type::not_eof(character);
}

std::streamsize OutputBuffer::xsputn(const char* text, std::streamsize size) {
  const std::streamsize taken = std::streambuf::xsputn(text, size);
  if (terminal_) sync();
  return taken;
}

int OutputBuffer::sync() {
  const char* next = pbase();
  const char* const end = pptr();
  setp(text_.data(), text_.data() + text_.size());  // text that cannot be written is not tried again
  while (next < end) {
    const ssize_t written = ::write(descriptor_, next, static_cast<std::size_t>(end - next));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // another program left the terminal or pipe non-blocking
      pollfd until{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&until, 1, -1);
      continue;
    }
    if (written < 0) {
      fail(ErrorKind::runtime, "cannot write standard output: {}", std::generic_category().message(errno));
    }
    next += written;
  }
  return 0;
}

bool open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // Those below are open, so it gets this number.
    if (::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY) != descriptor) return false;
  }
  return true;
}

}  // namespace headroom
