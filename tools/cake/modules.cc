#include "modules.h"

#include "audit_kda.h"
#include "bench_kda.h"
#include "cake/core/error.h"
#include "kda_packages.h"

namespace cake::tool {

const std::vector<Module>& modules() {
  static const std::vector<Module> table = {
      {KdaDet::kName, "Kimi Delta Attention, forward and backward, gradients repeat bit for bit",
       KdaDet::kDeterministic, kda_det_train::implementations, kda_audit_subject<KdaDet>, bench_kda<KdaDet>},
      {KdaNondet::kName, "Kimi Delta Attention, forward and backward, gradients may differ in their last bits",
       KdaNondet::kDeterministic, kda_nondet_train::implementations, kda_audit_subject<KdaNondet>,
       bench_kda<KdaNondet>},
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
