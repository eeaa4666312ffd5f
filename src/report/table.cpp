#include <fmt/format.h>

#include <algorithm>

#include "headroom/core/bytes.h"
#include "headroom/report/table.h"

namespace headroom {

Cell bytes_cell(std::int64_t bytes) {
  return {format_bytes(bytes), bytes};
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].text.size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i].text, widths[i])
                     : fmt::format("  {:>{}}", row[i].text, widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Table::csv() const {
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool quoted = row[i].text.find_first_of(",\"\n") != std::string::npos;
      std::string cell;
      for (const char c : row[i].text) cell.append(c == '"' ? 2 : 1, c);
      if (i > 0) text += ',';
      if (quoted) text += '"';
      text += cell;
      if (quoted) text += '"';
    }
    text += "\n";
  }
  return text;
}

std::string Table::markdown() const {
  std::string text;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (const Cell& cell : rows_[r]) text += fmt::format("| {} ", cell.text);
    text += "|\n";
    if (r > 0) continue;
    for (std::size_t i = 0; i < rows_[0].size(); ++i) text += i == 0 ? "|:--" : "|--:";
    text += "|\n";
  }
  return text;
}

}  // namespace headroom
