// A call resolved once, so that running it allocates nothing: the state behind the packages' Plan classes.
#pragma once

#include <optional>
#include <vector>

#include "ops/kda/call.h"

namespace cake::kda {

/// Planned views, the memory for them, and what the last forward saved.
class PlanRecord {
 public:
  /// backward_bytes of the package's order.
  using BackwardBytes = std::size_t (*)(const Extents&, const MemoryOptions&, bool recompute, bool params, int workers);

  /// Checks everything as run_forward and run_backward do, then reserves. Without `backward` the plan has none.
  PlanRecord(const Operands& operands, const Settings& settings, const CallOptions& options,
             const ForwardResults& outputs, const std::optional<BackwardArguments>& backward, BackwardBytes bytes);

  /// Throws InvalidArgument naming the first view that is not as planned.
  void check(const Operands& operands, const ForwardResults& outputs) const;
  /// The same for a backward; also when none was planned.
  void check(const Operands& operands, const BackwardArguments& backward) const;

  const Settings& settings() const { return settings_; }
  const CallOptions& options() const { return options_; }
  WorkspaceMemory& workspace() { return workspace_; }
  /// nullptr without a planned backward.
  SavedSet* saved() { return backward_ ? &saved_ : nullptr; }
  std::size_t nbytes() const { return workspace_.memory.size() + saved_.memory.size(); }

 private:
  void check_operands(const Operands& operands) const;

  Operands operands_;
  Settings settings_;
  CallOptions options_;
  ForwardResults outputs_;
  std::optional<BackwardArguments> backward_;
  std::vector<std::int32_t> offsets_;
  WorkspaceMemory workspace_;
  SavedSet saved_;
};

}  // namespace cake::kda
