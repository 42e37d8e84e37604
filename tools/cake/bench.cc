// `cake bench`: how fast a package is against the machine's ceilings and against the same recurrence token by token.
#include "bench.h"

#include <charconv>
#include <map>
#include <memory>

#include "bench_kcp.h"
#include "cake/core/error.h"
#include "commands.h"
#include "modules.h"

namespace cake::tool {
namespace {

struct BenchArguments {
  std::string module, shape, dtype = "fp32", isa, exchange = "auto", cut = "segment";
  BenchOptions options;
  bool comm = false, json = false;
};

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw InvalidArgument("--dtype: got \"" + name + "\", expected fp32, bf16 or fp16");
}

struct Extent {
  std::int64_t* value;
  std::int64_t least, most, step;
  const char* accepted;
};

void parse_extent(const std::string& part, std::map<std::string, Extent>& extents) {
  const std::size_t equals = part.find('=');
  const auto found = extents.find(part.substr(0, equals));
  if (equals == std::string::npos || found == extents.end()) {
    throw InvalidArgument("--shape: got \"" + part + "\", expected T=.., H=.., K=.. or V=.., separated by commas");
  }
  const Extent& extent = found->second;
  const char *first = part.data() + equals + 1, *last = part.data() + part.size();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (error != std::errc() || end != last || value < extent.least || value > extent.most || value % extent.step != 0) {
    throw InvalidArgument("--shape: got \"" + part + "\", expected " + extent.accepted);
  }
  *extent.value = value;
  extents.erase(found);  // a second mention is an error
}

/// What `--comm` shows follows from the problem alone, so that what is about a run has no meaning with it.
void refuse_with_comm(const std::vector<const CLI::Option*>& others) {
  for (const CLI::Option* other : others) {
    if (other->count() == 0) continue;
    throw InvalidArgument(other->get_name() +
                          ": got it with --comm, which times nothing and shows 2 and 4 ranks, relay " +
                          "and gather; expected --shape, --dtype or --json");
  }
}

void run_comm(const Module& module, const BenchArguments& arguments) {
  const BenchOptions& options = arguments.options;
  if (options.T < kCommDocuments) {
    throw InvalidArgument("--shape: got T=" + std::to_string(options.T) + ", expected T from " +
                          std::to_string(kCommDocuments) + " with --comm, which cuts it into as many documents");
  }
  CommReport report = module.comm(options);
  report.module = module.name;
  if (arguments.json) {
    print_comm_json(report);
  } else {
    print_comm(report);
  }
}

}  // namespace

void parse_shape(const std::string& text, BenchOptions& options) {
  std::map<std::string, Extent> extents = {
      {"T", {&options.T, 1, 1 << 20, 1, "T from 1 to 1048576"}},
      {"H", {&options.H, 1, 1024, 1, "H from 1 to 1024"}},
      {"K", {&options.K, 16, 256, 16, "K a multiple of 16 from 16 to 256 (token-by-token versions)"}},
      {"V", {&options.V, 16, 256, 16, "V a multiple of 16 from 16 to 256 (token-by-token versions)"}},
  };
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parse_extent(text.substr(at, comma - at), extents);
    at = comma + 1;
  }
}

void add_bench_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Time against the machine's ceilings and token-by-token peers");
  command->add_option("MODULE", arguments->module, "Package, for example cake_kda_det_train (cake info lists them)")
      ->required();
  command->add_option("--shape", arguments->shape,
                      "T=..,H=..,K=..,V=.. (default T=4096,H=4,K=128,V=128; T is larger over ranks)");
  command->add_option("--dtype", arguments->dtype, "Operands: fp32, bf16 or fp16")->capture_default_str();
  const CLI::Option* threads = command
                                   ->add_option("--threads", arguments->options.threads,
                                                "Threads of every case but the two-thread ones; over ranks, of each")
                                   ->check(CLI::Range(1, 1024))
                                   ->capture_default_str();
  const CLI::Option* level =
      command->add_option("--isa", arguments->isa, "Instruction-set level: base, v3 or v4 (default: the one in use)");
  const CLI::Option* repeats = command->add_option("--repeats", arguments->options.repeats, "Rounds")
                                   ->check(CLI::Range(1, 1000))
                                   ->capture_default_str();
  const CLI::Option* ranks =
      command->add_option("--ranks", arguments->options.ranks, "Packages over ranks: number of ranks, as threads")
          ->check(CLI::Range(1, 64))
          ->capture_default_str();
  const CLI::Option* exchange =
      command->add_option("--exchange", arguments->exchange, "Packages over ranks: relay, gather or auto")
          ->capture_default_str();
  const CLI::Option* cut =
      command->add_option("--cut", arguments->cut, "Packages over ranks: cuts on borders of segments, or even")
          ->capture_default_str();
  const CLI::Option* comm =
      command->add_flag("--comm", arguments->comm, "Packages over ranks: bytes per border instead of times");
  command->add_flag("--json", arguments->json, "Machine-readable output");
  const std::vector<const CLI::Option*> over_ranks = {ranks, exchange, cut, comm};
  const std::vector<const CLI::Option*> of_runs = {threads, level, repeats, ranks, exchange, cut};
  command->callback([arguments, over_ranks, of_runs, &exit_code] {
    const Module& module = find_module(arguments->module);
    for (const CLI::Option* option : over_ranks) {
      if (option->count() > 0) require_over_ranks(module, option->get_name());
    }
    if (arguments->comm) refuse_with_comm(of_runs);
    BenchOptions& options = arguments->options;
    options.T = arguments->comm ? kCommTokens : module.bench_tokens;
    if (!arguments->shape.empty()) parse_shape(arguments->shape, options);
    options.dtype = parse_dtype(arguments->dtype);
    options.exchange = kcp::parse_exchange(arguments->exchange);
    options.cut = parse_bench_cut(arguments->cut);
    if (arguments->comm) {
      run_comm(module, *arguments);
      exit_code = 0;
      return;
    }
    options.isa = arguments->isa.empty() ? current_cpu_isa() : parse_cpu_isa(arguments->isa);
    const ScopedCpuIsa isa(options.isa);
    BenchReport report = module.bench(options);
    report.module = module.name;
    if (arguments->json) {
      print_bench_json(report);
    } else {
      print_bench(report);
    }
    exit_code = report.agrees() ? 0 : 1;
  });
}

}  // namespace cake::tool
