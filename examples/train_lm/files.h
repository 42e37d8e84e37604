// Files that appear whole or not at all.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cake::train_lm {

/// A file could not be written or is not what it should be; the message names the file and the reason.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writes the parts one after another into a temporary file of the same folder, syncs it, renames it to `path` and
/// syncs the folder. On any failure (a full disk) the temporary file is removed, an old file stays as it was, and
/// FileError is thrown; `what` names the kind of file in its message.
void write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts, const char* what);

}  // namespace cake::train_lm
