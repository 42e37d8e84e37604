// The packages the tools know: one table that every command reads, so that a new package joins all of them at once.
#pragma once

#include <string>
#include <vector>

#include "audit.h"
#include "bench.h"
#include "cake/core/info.h"
#include "cake/core/tensor.h"

namespace cake::tool {

/// One package as the tools see it.
struct Module {
  const char* name;     ///< "cake_kda_det_train"
  const char* summary;  ///< one line
  bool deterministic;   ///< promises equal bits
  std::vector<Implementation> (*implementations)(Device device);
  const AuditSubject& (*audit)();                     ///< what `cake audit` runs
  BenchReport (*bench)(const BenchOptions&);          ///< what `cake bench` runs
  std::int64_t bench_tokens;                          ///< T of its problem where the user gives none
  CommReport (*comm)(const BenchOptions&) = nullptr;  ///< what `cake bench --comm` runs; null on one rank

  /// It runs over ranks.
  bool over_ranks() const { return comm != nullptr; }
};

/// Every package of this version.
const std::vector<Module>& modules();
/// The package of that name. Throws InvalidArgument naming the known ones.
const Module& find_module(const std::string& name);
/// Throws InvalidArgument that names an option which only packages over ranks take, and those.
void require_over_ranks(const Module& module, const std::string& option);

}  // namespace cake::tool
