// What people look at: tables of text.
#pragma once

#include <string>
#include <vector>

namespace headroom {

// Columns as wide as their widest cell. The first column is left-aligned, the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string csv() const;
  [[nodiscard]] std::string markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headroom
