// `cake train` as a child process, for the tests of the command.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/train/test_util.h"

extern char** environ;

namespace cake::test {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

/// A running `cake`; its standard output and error go to files of a folder.
class Command {
 public:
  /// `launcher` is what starts it, if not this process: a program and its arguments.
  Command(const TemporaryFolder& folder, const Arguments& arguments, const Arguments& launcher = {})
      : out_(folder / "out"), err_(folder / "err") {
    std::vector<std::string> words = launcher;
    words.emplace_back(CAKE_COMMAND);
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT_EQ(posix_spawn(&pid_, words.front().c_str(), &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  int pid() const { return pid_; }
  std::string error() const { return std::filesystem::exists(err_) ? read_text(err_) : ""; }
  /// Waits for the end; the exit code, or minus the signal.
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string output() const { return read_text(out_); }

 private:
  std::string out_, err_;
  pid_t pid_ = 0;
};

struct Result {
  int code;
  std::string out, err;
  /// The last line of standard output as JSON.
  Json json() const {
    const std::string text = out.substr(0, out.size() - (out.empty() ? 0 : 1));
    const std::size_t line = text.rfind('\n');
    return Json::parse(line == std::string::npos ? text : text.substr(line + 1));
  }
};

class TrainCommand : public testing::Test {
 protected:
  TrainCommand() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Sentence number " + std::to_string(i) + " says little.\n";
    write_text(folder_ / "text.txt", text);
  }

  /// Runs `cake train` on a small text and model, with more arguments.
  Result train(const Arguments& more) { return run(with_defaults(more)); }
  Result run(const Arguments& arguments) {
    Command command(folder_, arguments);
    const int code = command.wait();
    return {code, command.output(), command.error()};
  }
  Arguments with_defaults(const Arguments& more) const {
    Arguments all{
        "train",          "--text", folder_ / "text.txt", "--layers", "1",     "--width", "32", "--heads", "2",
        "--batch-tokens", "300",    "--document-tokens",  "100",      "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Arguments resume(const Arguments& more) const {
    Arguments all{"train", "--text", folder_ / "text.txt", "--json", "--resume", folder_ / "ckpt"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TemporaryFolder folder_;
};

}  // namespace cake::test
