// From a caller's arguments to the implementation that runs them: memory, saved sets, the order of checks, byte
// queries. Neutral of mode: a package names its order of addition, and only that instantiates the backward.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cake/core/info.h"
#include "cake/core/parallel.h"
#include "ops/kda/cpu/backward_driver.h"
#include "ops/kda/problem.h"

namespace cake::kda {

/// Memory of a saved set or a workspace: the caller's, or our own that grows.
class CallerMemory {
 public:
  CallerMemory() = default;
  CallerMemory(void* data, std::size_t bytes) : data_(data), bytes_(bytes), external_(true) {}
  /// At least `bytes` bytes. Throws OutOfMemory naming `name` when the caller's memory is smaller.
  void* ensure(std::size_t bytes, const char* name);
  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  /// It never grows.
  bool fixed() const { return external_ || sealed_; }
  /// From now on it never grows (own memory of a plan).
  void seal() { sealed_ = true; }
  /// New memory of `bytes` bytes where ensure would have to grow, nullptr where it would not: what it holds stays until
  /// adopt. Throws as ensure.
  std::unique_ptr<std::byte[]> prepare(std::size_t bytes, const char* name) const;
  /// Takes the memory that prepare(bytes) made, if any.
  void adopt(std::unique_ptr<std::byte[]> memory, std::size_t bytes);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool external_ = false, sealed_ = false;
  std::unique_ptr<std::byte[]> owned_;
};

/// Options of a call that change memory and nothing in the results.
struct CallOptions {
  bool tape = false, lean = false;
  std::int64_t tail_passes = 1;
  std::optional<std::int64_t> batch_tokens, max_docs_per_batch;

  Grouping grouping() const { return {batch_tokens.value_or(0), max_docs_per_batch.value_or(0)}; }
  MemoryOptions memory() const { return {tape, tail_passes}; }
};
/// Throws InvalidArgument naming an option out of range.
void check_options(const CallOptions& options);

/// What the forward kept, with a record of what it was made from.
struct SavedSet {
  CallerMemory memory{};
  bool filled = false;
  std::size_t bytes = 0;
  bool tape = false;
  Problem problem{};
  Settings settings{};
  DType dtype = DType::kFloat32;
  std::uint64_t offsets_digest = 0;
};

/// A workspace; one made for a shape serves its gate and norm mode only.
struct WorkspaceMemory {
  CallerMemory memory{};
  std::optional<Settings> made_for{};
};

/// What a saved set says about options: the part of its record that needs no tensor. Throws InvalidArgument.
void check_saved_options(const SavedSet& saved, const Settings& settings, const CallOptions& options);
/// Throws InvalidArgument naming the first size in which the saved set's forward differed.
void check_saved_problem(const SavedSet& saved, const Problem& problem, const Operands& operands);
/// Fills the record of a saved set.
void record_saved(SavedSet& saved, const Problem& problem, const Operands& operands, const Settings& settings,
                  bool tape);

/// A byte query's sizes, checked.
struct Sizes {
  Extents extents;
  bool gate_param_grads = false;
};
/// Throws InvalidArgument naming the field.
Sizes check_sizes(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::int64_t H, std::int64_t HV,
                  std::int64_t K, std::int64_t V, std::span<const std::int32_t> offsets, bool gate_param_grads,
                  const CallOptions& options);

/// Implementations in the order they are tried.
std::vector<Implementation> implementations(Device device);

/// Checks everything, then runs the forward.
void run_forward(const Operands& operands, const Settings& settings, const CallOptions& options,
                 const ForwardResults& results, WorkspaceMemory& workspace, SavedSet* saved);

/// A backward whose arguments are checked.
struct CheckedBackward {
  Problem problem{};
  Call call{};
  SavedMemory kept{};
};
/// Checks in the order saved set, workspace, options, tensors; the first error wins.
void check_backward_call(const Operands& operands, const Settings& settings, const CallOptions& options,
                         const BackwardArguments& arguments, const WorkspaceMemory& workspace, const SavedSet* saved,
                         CheckedBackward& checked);

/// Reserves the workspace and says how many workers it serves: as many threads as fit, at least one.
template <class BytesFor>
int reserve(WorkspaceMemory& workspace, BytesFor bytes_for) {
  int workers = num_threads();
  if (workspace.memory.fixed()) workers = fitting_workers(workspace.memory.size(), workers, bytes_for);
  workspace.memory.ensure(bytes_for(workers), "workspace");
  return workers;
}

/// Checks everything, calls `alert` (the determinism alert of a nondet package), then runs the backward.
template <class Order, class Alert>
void run_backward(const Operands& operands, const Settings& settings, const CallOptions& options,
                  const BackwardArguments& arguments, WorkspaceMemory& workspace, const SavedSet* saved, Alert alert) {
  CheckedBackward checked;
  check_backward_call(operands, settings, options, arguments, workspace, saved, checked);
  Call& call = checked.call;
  call.workers = reserve(workspace, [&](int workers) {
    return backward_bytes<Order>(call.extents, call.memory, saved == nullptr, arguments.params(), workers);
  });
  if (checked.problem.B * checked.problem.S > 0) alert();
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  backward_cpu<Order>(call, arguments, arena, saved != nullptr ? &checked.kept : nullptr);
}

}  // namespace cake::kda
