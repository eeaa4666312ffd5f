# Turns the style sheet and the script of report pages into a C++ header. Usage:
#   cmake -D STYLE=page.css -D SCRIPT=page.js -D HEADER=page_text.h -P page_text.cmake
file(READ ${STYLE} style)
file(READ ${SCRIPT} script)
file(WRITE ${HEADER}
"#pragma once
#include <string_view>
namespace headroom {
inline constexpr std::string_view kPageStyle = R\"page(${style})page\";
inline constexpr std::string_view kPageScript = R\"page(${script})page\";
}  // namespace headroom
")
