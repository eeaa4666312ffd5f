// Tables: for a terminal, a spreadsheet, a README, and in a page (report/page.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headroom {

// What a reader sees and, where that is a size, how many bytes it is exactly: a page carries both.
struct Cell {
  std::string text;
  std::optional<std::int64_t> bytes;

  Cell() = default;
  // Text is a cell without saying so.
  template <std::convertible_to<std::string> Text>
  Cell(Text&& shown) : text(std::forward<Text>(shown)) {}
  Cell(std::string shown, std::int64_t exact) : text(std::move(shown)), bytes(exact) {}
};
// "37.09 GiB", which is 39,823,409,152 bytes.
[[nodiscard]] Cell bytes_cell(std::int64_t bytes);

// Columns as wide as their widest cell. The first column is left-aligned, the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_(1) {
    for (std::string& name : header) rows_[0].emplace_back(std::move(name));
  }

  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] const std::vector<std::vector<Cell>>& rows() const { return rows_; }  // the header first

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string csv() const;
  [[nodiscard]] std::string markdown() const;

 private:
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace headroom
