// The `cake` command. Exit codes: 0 success, 1 a check found something, 2 could not run (bad usage, an error).
#include <cstdio>
#include <exception>

#include "cake/core/error.h"
#include "commands.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Training kernels whose name says whether gradients repeat bit for bit"};
  app.require_subcommand(1);
  int exit_code = 0;
  cake::tool::add_info_command(app, exit_code);
  cake::tool::add_audit_command(app, exit_code);
  cake::tool::add_bench_command(app, exit_code);
  cake::tool::add_train_command(app, exit_code);
  // The parser would only say that a command is missing.
  const auto is_first = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_first).empty()) {
    std::fprintf(stderr, "cake: unknown command \"%s\" (cake --help lists them)\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const cake::Error& e) {
    std::fprintf(stderr, "cake: %s: %s\n", cake::error_kind_name(e.kind()), e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cake: %s\n", e.what());
  }
  return 2;
}
