#include "modules.h"

#include "audit_kcp.h"
#include "audit_kda.h"
#include "bench_kcp.h"
#include "bench_kda.h"
#include "cake/core/error.h"
#include "kda_packages.h"

namespace cake::tool {

const std::vector<Module>& modules() {
  static const std::vector<Module> table = {
      {KdaDet::kName, "Kimi Delta Attention, forward and backward, gradients repeat bit for bit",
       KdaDet::kDeterministic, kda_det_train::implementations, kda_audit_subject<KdaDet>, bench_kda<KdaDet>,
       BenchOptions().T},
      {KdaNondet::kName, "Kimi Delta Attention, forward and backward, gradients may differ in their last bits",
       KdaNondet::kDeterministic, kda_nondet_train::implementations, kda_audit_subject<KdaNondet>, bench_kda<KdaNondet>,
       BenchOptions().T},
      {KdaDetKcp::kName, "Kimi Delta Attention over ranks, bit for bit what one rank gives", KdaDetKcp::kDeterministic,
       kda_det_train_kcp::implementations, kcp_audit_subject<KdaDetKcp>, bench_kcp<KdaDetKcp>, kKcpBenchTokens,
       comm_kcp<KdaDetKcp>},
      {KdaNondetKcp::kName, "Kimi Delta Attention over ranks, gradients may differ in their last bits",
       KdaNondetKcp::kDeterministic, kda_nondet_train_kcp::implementations, kcp_audit_subject<KdaNondetKcp>,
       bench_kcp<KdaNondetKcp>, kKcpBenchTokens, comm_kcp<KdaNondetKcp>},
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

void require_over_ranks(const Module& module, const std::string& option) {
  if (module.over_ranks()) return;
  std::string known;
  for (const Module& other : modules()) {
    if (!other.over_ranks()) continue;
    if (!known.empty()) known += ", ";
    known += other.name;
  }
  throw InvalidArgument(option + ": got it with " + module.name +
                        ", which runs on one rank; expected one of: " + known);
}

}  // namespace cake::tool
