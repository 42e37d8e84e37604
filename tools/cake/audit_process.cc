// The audit's second process: this program again, started afresh, its digests read through a pipe.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "audit.h"
#include "cake/core/error.h"
#include "machine.h"

extern char** environ;

namespace cake::tool {
namespace {

[[noreturn]] void fail(const std::string& what) { throw DeviceError("second process: " + what); }

/// Runs this program with arguments and returns what it prints.
std::string output_of_self(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail(std::string("no pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  arguments.insert(arguments.begin(), "cake");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t got = error == 0 ? read(ends[0], block, sizeof block) : 0;
    if (got > 0) text.append(block, static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  close(ends[0]);
  if (error != 0) fail(std::string("could not start: ") + std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(std::string("lost: ") + std::strerror(errno));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("ended with status " + std::to_string(status));
  return text;
}

}  // namespace

std::vector<std::vector<TensorDigest>> digests_of_fresh_process(const std::string& module, int ranks) {
  const Json all = Json::parse(output_of_self({"audit-digests", module, "--on", std::to_string(ranks)}));
  std::vector<std::vector<TensorDigest>> problems;
  for (const Json& problem : all) {
    problems.emplace_back();
    for (const auto& [tensor, digest] : problem["digests"].items()) {
      problems.back().push_back({tensor, digest.get<std::string>()});
    }
  }
  return problems;
}

void print_plain_digests(const AuditSubject& subject, int ranks) {
  Json all = Json::array();
  for (std::size_t p = 0; p < subject.problems().size(); ++p) {
    Json problem;
    problem["problem"] = subject.problems()[p].name;
    for (const TensorDigest& entry : subject.run(p, plain_variation("plain", ranks)).digests) {
      problem["digests"][entry.tensor] = *entry.digest;
    }
    all.push_back(problem);
  }
  fmt::print("{}\n", all.dump());
}

}  // namespace cake::tool
