#include "machine.h"

#include <sched.h>

#include <fstream>

#include "cake/core/cpu_isa.h"
#include "cake/core/info.h"
#include "cake/core/parallel.h"

namespace cake::tool {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::vector<std::pair<std::string, std::string>> isa_levels() {
  std::vector<std::pair<std::string, std::string>> levels;
  for (const CpuIsa isa : {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4}) {
    levels.emplace_back(cpu_isa_name(isa), cpu_isa_supported(isa) ? "yes" : kNotOnThisCpu);
  }
  return levels;
}

Json cpu_json() {
  Json cpu;
  cpu["device"] = "cpu";
  cpu["model"] = cpu_model();
  cpu["cores"] = usable_cores();
  cpu["threads"] = num_threads();
  for (const auto& [level, state] : isa_levels()) cpu["levels"][level] = state;
  cpu["level_in_use"] = cpu_isa_name(current_cpu_isa());
  return cpu;
}

Json build_json() {
  const BuildInfo info = build_info();
  Json build;
  build["version"] = info.version;
  build["compiler"] = info.compiler;
  build["build_type"] = info.build_type;
  build["threads_backend"] = info.threads;
  build["cuda"] = info.cuda;
  build["segment"] = info.segment;
  build["planted_fault"] = info.planted_fault;
  return build;
}

}  // namespace cake::tool
