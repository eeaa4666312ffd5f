// Other people's text in our messages: on one line, without anything that a terminal would obey, not too
// long.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headroom {

// Control characters and bytes that are no UTF-8 are written as \n, \t, \r or \xNN; everything else is kept.
[[nodiscard]] std::string printable(std::string_view text);

// The printable text between single quotes. Of a long one only the beginning, followed by "...".
[[nodiscard]] std::string quote(std::string_view text);

// At most `longest` bytes of a text: where there are more, the middle is replaced by " ... ".
[[nodiscard]] std::string shortened(std::string_view text, std::size_t longest);

}  // namespace headroom
