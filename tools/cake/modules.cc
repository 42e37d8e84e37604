#include "modules.h"

#include "audit_kda.h"
#include "bench_kda.h"
#include "cake/core/error.h"
#include "cake/kda_det_train.h"

namespace cake::tool {

const std::vector<Module>& modules() {
  static const std::vector<Module> table = {
      {"cake_kda_det_train", "Kimi Delta Attention, forward and backward, gradients repeat bit for bit",
       kda_det_train::implementations, kda_audit_subject, bench_kda},
  };
  return table;
}

const Module& find_module(const std::string& name) {
  std::string known;
  for (const Module& module : modules()) {
    if (name == module.name) return module;
    known += known.empty() ? module.name : std::string(", ") + module.name;
  }
  throw InvalidArgument("MODULE: got \"" + name + "\", expected one of: " + known);
}

}  // namespace cake::tool
