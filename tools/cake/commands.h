// The subcommands of `cake`: one file each, registered by main.cc.
#pragma once

#include <CLI/CLI.hpp>

namespace cake::tool {

/// Adds `cake info`: packages, devices, implementations, build facts.
void add_info_command(CLI::App& app, int& exit_code);
/// Adds `cake audit`: digests of every output and gradient under each perturbation; exit code 1 when a det package
/// differs.
void add_audit_command(CLI::App& app, int& exit_code);
/// Adds `cake bench`: time against the machine's ceilings and peers.
void add_bench_command(CLI::App& app, int& exit_code);
/// Adds `cake train`: the byte-level language model trainer of examples/train_lm.
void add_train_command(CLI::App& app, int& exit_code);

}  // namespace cake::tool
