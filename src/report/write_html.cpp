#include "headroom/core/files.h"
#include "headroom/report/page.h"

namespace headroom {

void write_html(const std::filesystem::path& path, const Page& page) {
  write_file(path, html(page));
}

}  // namespace headroom
