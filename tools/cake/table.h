// Text tables with aligned columns.
#pragma once

#include <string>
#include <vector>

namespace cake::tool {

/// Collects rows and prints them with two spaces between columns.
class Table {
 public:
  /// `headings` fixes the number of columns. A heading that starts with '>' is printed without it, its column to the
  /// right.
  explicit Table(std::vector<std::string> headings);
  /// Adds a row; missing cells are empty.
  void add(std::vector<std::string> cells);
  /// The text, a line per row, each with `indent` spaces in front.
  std::string text(int indent = 0) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cake::tool
