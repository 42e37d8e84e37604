// From a checked problem to the implementation that runs it: memory, saved sets, byte queries. Neutral of mode; a
// package compiled into libcake_det reaches the fixed order through it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cake/core/info.h"
#include "ops/kda/cpu/memory.h"
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
  bool external() const { return external_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool external_ = false;
  std::unique_ptr<std::byte[]> owned_;
};

/// What the forward kept, with a record of what it was made from.
struct SavedSet {
  CallerMemory memory{};
  bool filled = false;
  std::size_t bytes = 0;
  Problem problem{};
  Settings settings{};
  DType dtype = DType::kFloat32;
  std::uint64_t offsets_digest = 0;
};

/// A workspace.
struct WorkspaceMemory {
  CallerMemory memory{};
};

/// Throws NotSupported naming the first option of `module` that this version does not build.
void refuse_options(const char* module, bool tape, bool lean, std::int64_t tail_passes,
                    const std::optional<std::int64_t>& batch_tokens,
                    const std::optional<std::int64_t>& max_docs_per_batch);

/// Sizes for a byte query. Throws InvalidArgument naming the field.
Extents extents_of_shape(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::int64_t H, std::int64_t HV,
                         std::int64_t K, std::int64_t V, std::span<const std::int32_t> offsets);

/// Implementations in the order they are tried.
std::vector<Implementation> implementations(Device device);

/// Checks everything, then runs the forward.
void run_forward(const Operands& operands, const Settings& settings, const ForwardResults& results,
                 WorkspaceMemory& workspace, SavedSet* saved);
/// Checks everything, then runs the backward.
void run_backward(const Operands& operands, const Settings& settings, const ConstTensorView& dout,
                  const ConstTensorView& d_final_state, const BackwardResults& results, WorkspaceMemory& workspace,
                  const SavedSet* saved);

}  // namespace cake::kda
