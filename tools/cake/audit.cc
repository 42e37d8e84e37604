// `cake audit`: digests of every output and gradient of a package under everything that must not change them.
#include "audit.h"

#include <memory>
#include <string>

#include "cake/core/error.h"
#include "commands.h"
#include "modules.h"

namespace cake::tool {
namespace {

struct AuditArguments {
  std::string module;
  AuditOptions options;
  std::vector<std::string> levels;
  std::string cuts = "random:20";
  bool json = false;
};

}  // namespace

void add_audit_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<AuditArguments>();
  CLI::App* command = app.add_subcommand(
      "audit", "Digests of every output and gradient under each perturbation; exit code 1 when a det package differs");
  command->add_option("MODULE", arguments->module, "Package, for example cake_kda_det_train (cake info lists them)")
      ->required();
  command->add_option("--repeats", arguments->options.repeats, "Repeats, and task orders per number of threads")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--threads", arguments->options.threads,
                   "Numbers of threads, for example 1,2,3,7; over ranks, of each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--isa", arguments->levels, "Instruction-set levels, for example v3,v4 (default: all)")
      ->delimiter(',');
  const CLI::Option* ranks =
      command->add_option("--ranks", arguments->options.ranks, "Packages over ranks: numbers of ranks, as threads")
          ->delimiter(',')
          ->check(CLI::Range(1, 64))
          ->capture_default_str();
  const CLI::Option* cuts =
      command
          ->add_option("--cuts", arguments->cuts, "Packages over ranks: random:SETS or random:SETS:SEED cuts a number")
          ->capture_default_str();
  command->add_flag("--json", arguments->json, "Machine-readable output");
  command->callback([arguments, ranks, cuts, &exit_code] {
    const Module& module = find_module(arguments->module);
    for (const CLI::Option* option : {ranks, cuts}) {
      if (option->count() > 0) require_over_ranks(module, option->get_name());
    }
    arguments->options.cuts = parse_cuts(arguments->cuts);
    if (!arguments->levels.empty()) {
      arguments->options.levels.clear();
      for (const std::string& level : arguments->levels) {
        arguments->options.levels.push_back(parse_cpu_isa(level));
      }
    }
    const AuditReport report = run_audit(module.name, module.audit(), arguments->options);
    if (arguments->json) {
      print_audit_json(report);
    } else {
      print_audit(report);
    }
    exit_code = report.passed() ? 0 : 1;
  });

  // The second process that the audit compares itself with.
  CLI::App* digests = app.add_subcommand("audit-digests", "Digests of a package's plain runs, as JSON")->group("");
  auto module = std::make_shared<std::string>();
  digests->add_option("MODULE", *module, "Package")->required();
  auto on = std::make_shared<int>(1);
  digests->add_option("--on", *on, "Ranks of a package over ranks")->check(CLI::Range(1, 64));
  digests->callback([module, on] { print_plain_digests(find_module(*module).audit(), *on); });
}

}  // namespace cake::tool
