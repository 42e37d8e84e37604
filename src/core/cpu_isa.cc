#include "cake/core/cpu_isa.h"

#include <cstdlib>

#include "cake/core/error.h"

namespace cake {
namespace {

thread_local int t_isa = -1;  // the scope's level, or -1

bool cpu_has(CpuIsa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case CpuIsa::kBase: return true;
    case CpuIsa::kV3: return __builtin_cpu_supports("x86-64-v3") != 0;
    case CpuIsa::kV4: return __builtin_cpu_supports("x86-64-v4") != 0;
  }
  return false;
}

CpuIsa default_isa() {
  if (const char* name = std::getenv("CAKE_CPU_ISA"); name != nullptr && *name != '\0') {
    CpuIsa isa{};
    try {
      isa = parse_cpu_isa(name);
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(std::string("CAKE_CPU_ISA: ") + e.what());
    }
    if (!cpu_has(isa)) {
      throw NotSupported(std::string("CAKE_CPU_ISA=") + name + ": not on this CPU");
    }
    return isa;
  }
  return cpu_has(CpuIsa::kV4) ? CpuIsa::kV4 : cpu_has(CpuIsa::kV3) ? CpuIsa::kV3 : CpuIsa::kBase;
}

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBase: return "base";
    case CpuIsa::kV3: return "v3";
    case CpuIsa::kV4: return "v4";
  }
  return "unknown";
}

CpuIsa parse_cpu_isa(const std::string& name) {
  for (const CpuIsa isa : {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4}) {
    if (name == cpu_isa_name(isa)) return isa;
  }
  throw InvalidArgument("instruction-set level: got \"" + name + "\", expected base, v3 or v4");
}

bool cpu_isa_supported(CpuIsa isa) { return cpu_has(isa); }

std::vector<CpuIsa> supported_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4}) {
    if (cpu_has(isa)) isas.push_back(isa);
  }
  return isas;
}

CpuIsa current_cpu_isa() { return t_isa >= 0 ? static_cast<CpuIsa>(t_isa) : default_isa(); }

ScopedCpuIsa::ScopedCpuIsa(CpuIsa isa) : before_(t_isa) {
  if (!cpu_has(isa))
    throw NotSupported(std::string("instruction-set level ") + cpu_isa_name(isa) + ": not on this CPU");
  t_isa = static_cast<int>(isa);
}

ScopedCpuIsa::~ScopedCpuIsa() { t_isa = before_; }

}  // namespace cake
