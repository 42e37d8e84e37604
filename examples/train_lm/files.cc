#include "files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace cake::train_lm {
namespace {

/// The temporary file: closed and removed unless it was renamed.
class Temporary {
 public:
  Temporary(const std::string& target, const char* what)
      : target_(target), path_(target + ".tmp" + std::to_string(::getpid())), what_(what) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) {  // left behind by a killed process that had the same number
      ::unlink(path_.c_str());
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (fd_ < 0) fail();
    exists_ = true;
  }
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (exists_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail();
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail();
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) fail();
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail();
    exists_ = false;
    sync_folder();
  }

  [[noreturn]] void fail() const {
    const std::string reason = std::error_code(errno, std::generic_category()).message();
    throw FileError(std::string(what_) + " \"" + target_ + "\" could not be written: " + reason +
                    "; a file of that name from before is unchanged");
  }

 private:
  void sync_folder() const {
    const std::filesystem::path parent = std::filesystem::path(target_).parent_path();
    const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;  // a folder that may be written but not read: the rename itself has happened
    ::fsync(folder);
    ::close(folder);
  }

  std::string target_, path_;
  const char* what_;
  int fd_ = -1;
  bool exists_ = false;
};

}  // namespace

void write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts, const char* what) {
  Temporary file(path, what);
  for (const std::string_view part : parts) file.write(part);
  file.commit();
}

}  // namespace cake::train_lm
