// KDA (Kimi Delta Attention) training, nondeterministic: gradients are right and may differ in their last bits from run
// to run.
//
// Per value head, with a state S of K x V numbers (Kimi Linear, arXiv:2510.26692):
//   S <- diag(exp g_t) S;  r = beta_t (v_t - S^T k_t);  S <- S + k_t r^T;  o_t = scale S^T q_t
// Same operands, options, errors and tolerances as cake_kda_det_train. On the CPU only dA_log and ddt_bias differ:
// their partial sums are added as tasks finish. Every backward with B * S > 0 alerts (cake/core/determinism.h), whether
// or not it would vary; forwards never do. Runs on the CPU in this version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/determinism.h"
#include "cake/core/error.h"
#include "cake/core/export.h"
#include "cake/core/handle.h"
#include "cake/core/info.h"
#include "cake/core/tensor.h"

namespace cake::kda_nondet_train {

/// What the forward keeps for the backward.
enum class SaveMode {
  kLight,  ///< per chunk the two 64 x 64 products of q, k and decays; per segment boundary states and transitions
  kTape,   ///< also the state, u and Vn of every chunk, so that the backward rebuilds nothing
};

/// Operands. B documents of S rows each, or with cu_seqlens one row of packed documents (then B is 1).
/// q, k, v and beta share one of fp32, bf16, fp16; any strides. Each view may be empty when S is 0.
struct Inputs {
  ConstTensorView q;  ///< [B, S, H, K], 1 <= K <= 256
  ConstTensorView k;  ///< [B, S, H, K]
  ConstTensorView v;  ///< [B, S, HV, V], HV a multiple of H, 1 <= V <= 256
  ConstTensorView g;  ///< [B, S, HV, K] fp32 natural-log decay <= 0; raw gate (any float dtype) with use_gate_in_kernel
  ConstTensorView beta;           ///< [B, S, HV] in the dtype of q or fp32; a logit with use_beta_sigmoid_in_kernel
  ConstTensorView cu_seqlens;     ///< int32 [N + 1] row offsets: first 0, non-decreasing, last <= S; optional
  ConstTensorView initial_state;  ///< fp32 [N, HV, K, V]; optional (zero). N = B without cu_seqlens
  ConstTensorView A_log;          ///< fp32 [HV]; with use_gate_in_kernel (optional there with lower_bound: factor 1)
  ConstTensorView dt_bias;        ///< fp32 [HV, K] or [HV * K]; optional, with use_gate_in_kernel
};

/// Options, the same in forward and backward.
struct Options {
  std::optional<float> scale;               ///< of the output; K^-1/2 when not set
  bool use_gate_in_kernel = false;          ///< g is raw: -exp(A_log) softplus(g + dt_bias), or the lower-bound form
  std::optional<float> lower_bound;         ///< gate lower_bound * sigmoid(exp(A_log) (g + dt_bias)); < 0
  bool use_qk_l2norm_in_kernel = false;     ///< q and k rows are divided by sqrt(sum of squares + 1e-6)
  bool use_beta_sigmoid_in_kernel = false;  ///< beta = sigmoid(beta)
  bool allow_neg_eigval = false;            ///< beta is doubled after the sigmoid; needs use_beta_sigmoid_in_kernel
  SaveMode save_mode = SaveMode::kLight;    ///< what a saved set holds
  bool lean = false;  ///< workspaces without the room of a backward that has no saved set; such a backward is refused
  std::int64_t tail_passes =
      1;  ///< ranges of a segment's chunks that the backward rebuilds and runs one after another:
          ///< a smaller workspace for one more forward pass (no effect with kTape); same bits
  std::optional<std::int64_t> batch_tokens;        ///< groups of whole documents of at most this many tokens run one
                                                   ///< after another in a workspace for the largest; same bits
  std::optional<std::int64_t> max_docs_per_batch;  ///< the same by number of documents
};

/// Results of the forward. Rows past the last offset are written as 0.
struct Outputs {
  TensorView out;          ///< [B, S, HV, V] in the dtype of q
  TensorView final_state;  ///< fp32 [N, HV, K, V]; optional
};

/// Results of the backward, each optional. Rows past the last offset are written as 0.
struct Gradients {
  TensorView dq;              ///< [B, S, H, K] in the dtype of q
  TensorView dk;              ///< [B, S, H, K] in the dtype of k
  TensorView dv;              ///< [B, S, HV, V] in the dtype of v
  TensorView dg;              ///< [B, S, HV, K] in the dtype of g
  TensorView dbeta;           ///< [B, S, HV] in the dtype of beta
  TensorView dA_log;          ///< fp32 [HV]; needs use_gate_in_kernel and A_log
  TensorView ddt_bias;        ///< fp32, shape of dt_bias; needs use_gate_in_kernel and dt_bias
  TensorView dinitial_state;  ///< fp32 [N, HV, K, V]; needs initial_state
};

/// Sizes for the byte queries. Without cu_seqlens the answer is an upper bound over every packing of num_docs
/// documents into S rows of each of the B rows; with it the answer is what the call uses.
struct Shape {
  std::int64_t B = 1;                    ///< rows of the batch; 1 with cu_seqlens
  std::int64_t S = 0;                    ///< tokens of a row
  std::int64_t num_docs = 1;             ///< documents in all
  std::int64_t H = 1;                    ///< heads of q and k
  std::int64_t HV = 1;                   ///< heads of v, a multiple of H
  std::int64_t K = 0;                    ///< head dimension of q and k
  std::int64_t V = 0;                    ///< head dimension of v
  std::vector<std::int32_t> cu_seqlens;  ///< host copy of the offsets; empty: not known
  bool gate_param_grads = false;         ///< the backward returns dA_log or ddt_bias
};

namespace detail {
struct PlanState;
struct SavedState;
struct WorkspaceState;
}  // namespace detail

/// What a forward kept: made by forward, read by backward. Movable; not for concurrent forwards.
class CAKE_API Saved {
 public:
  /// Memory is allocated by the forward.
  Saved();
  /// Uses the caller's memory, at least saved_bytes; throws OutOfMemory in the forward when it is smaller.
  Saved(void* memory, std::size_t bytes);
  ~Saved();
  /// Leaves the other one unusable.
  Saved(Saved&&) noexcept;
  /// Leaves the other one unusable.
  Saved& operator=(Saved&&) noexcept;
  /// True until a forward has filled it.
  bool empty() const;
  /// Bytes in use.
  std::size_t nbytes() const;
  /// What a forward filled it with, as a text of at most 448 bytes: with it and the caller's memory (or a copy of it at
  /// an address of the same remainder by 64) another object can serve the backward. Throws InvalidArgument when empty.
  std::string record() const;
  /// A set in memory that a forward filled. Throws the errors of check_tag for a record of another package,
  /// InvalidArgument for a text that is none, OutOfMemory for memory smaller than the record says.
  static Saved from_record(void* memory, std::size_t bytes, const std::string& record);
  /// "cake/kda/nondet/saved/v1".
  static Tag tag();
  /// The object behind the class, for the package's own functions.
  detail::SavedState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::SavedState> state_;
};

/// Scratch memory for any number of calls of this package, one after another.
class CAKE_API Workspace {
 public:
  /// Grows when a call needs more.
  Workspace();
  /// Sized now, for num_threads() threads, and fixed: for forwards and (unless backward is false) backwards of the
  /// shape. Serves the gate and norm mode of `options` only; calls of another are refused.
  explicit Workspace(const Shape& shape, const Options& options, bool backward = true);
  /// Uses the caller's memory; a call that needs more throws OutOfMemory before it writes anything.
  Workspace(void* memory, std::size_t bytes);
  ~Workspace();
  /// Leaves the other one unusable.
  Workspace(Workspace&&) noexcept;
  /// Leaves the other one unusable.
  Workspace& operator=(Workspace&&) noexcept;
  /// Bytes it holds.
  std::size_t nbytes() const;
  /// "cake/kda/nondet/workspace/v1".
  static Tag tag();
  /// The object behind the class, for the package's own functions.
  detail::WorkspaceState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::WorkspaceState> state_;
};

/// A call resolved once: views, offsets and options are checked and all memory is reserved for num_threads() threads,
/// so that running it allocates nothing. Later views may lie elsewhere and hold other numbers; dtypes, shapes, strides
/// and the content of cu_seqlens must be the planned ones.
class CAKE_API Plan {
 public:
  /// A forward and its backward. Checks as forward and backward do and throws the same errors.
  Plan(const Inputs& inputs, const Outputs& outputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
       const Gradients& gradients, const Options& options = {});
  /// A forward alone: nothing is saved.
  Plan(const Inputs& inputs, const Outputs& outputs, const Options& options = {});
  ~Plan();
  /// Leaves the other one unusable.
  Plan(Plan&&) noexcept;
  /// Leaves the other one unusable.
  Plan& operator=(Plan&&) noexcept;
  /// Runs the forward. Throws InvalidArgument naming a view that is not as planned.
  void forward(const Inputs& inputs, const Outputs& outputs);
  /// Runs the backward of the last forward; may run again. Errors as forward, and InvalidArgument before a forward or
  /// without a planned backward; then the determinism alert.
  void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                const Gradients& gradients, std::optional<DeterminismPolicy> policy = {});
  /// Bytes it holds.
  std::size_t nbytes() const;
  /// "cake/kda/nondet/plan/v1".
  static Tag tag();

 private:
  std::unique_ptr<detail::PlanState> state_;
};

/// True when this version has an implementation for the device.
CAKE_API bool is_supported(Device device = {});
/// The implementations in the order they are tried, with the reason each was refused on this machine.
CAKE_API std::vector<Implementation> implementations(Device device = {});

/// Computes out and, where given, final_state. With `saved` it keeps what the backward reads. Without a workspace one
/// is allocated for the call. All arguments are checked before anything is written.
/// Throws InvalidArgument (shape, dtype, offsets, a missing or contradicting option; the message names it),
/// NotSupported (an option or device this version lacks), OutOfMemory (caller's memory too small).
CAKE_API void forward(const Inputs& inputs, const Outputs& outputs, const Options& options = {},
                      Workspace* workspace = nullptr, Saved* saved = nullptr);

/// Computes the gradients asked for. `dout` is [B, S, HV, V] in the dtype of q, any strides (an expanded one too);
/// `d_final_state` fp32 [N, HV, K, V] or not given (zero). `saved` comes from the forward of the same operands and
/// options; without it everything is recomputed from the inputs. May be called again. `policy` is what the determinism
/// alert does, this thread's default when not given.
/// Errors as forward; also InvalidArgument for an empty saved set or one of another problem or other options; after all
/// of these NondeterminismAlert under kForbid, before anything is written.
CAKE_API void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                       const Gradients& gradients, const Options& options = {}, Workspace* workspace = nullptr,
                       const Saved* saved = nullptr, std::optional<DeterminismPolicy> policy = {});

/// Handles share their object and carry its tag, for borders where C++ types are lost.
CAKE_API Handle make_handle(std::shared_ptr<Saved> saved);
/// The same for a workspace.
CAKE_API Handle make_handle(std::shared_ptr<Workspace> workspace);
/// forward with handles; an empty one means none. A workspace of the other mode is WrongMode, a saved set of the other
/// mode WrongMode naming the package it belongs to, any other object WrongType; then as forward.
CAKE_API void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, const Handle& workspace,
                      const Handle& saved);
/// backward with handles. Checks the saved set, then the workspace, then as backward.
CAKE_API void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                       const Gradients& gradients, const Options& options, const Handle& workspace, const Handle& saved,
                       std::optional<DeterminismPolicy> policy = {});

/// Workspace bytes a forward needs, without or (smaller) with a saved set; `threads` 0 means num_threads(). With fewer
/// threads at the call the same memory serves, with more the call uses as many as fit.
CAKE_API std::size_t forward_workspace_bytes(const Shape& shape, const Options& options = {}, bool saving = false,
                                             int threads = 0);
/// Workspace bytes a backward needs, from a saved set or (recompute) from the inputs alone. InvalidArgument for
/// recompute with lean.
CAKE_API std::size_t backward_workspace_bytes(const Shape& shape, bool recompute, const Options& options = {},
                                              int threads = 0);
/// Workspace bytes that serve forward and backward, with lean only the backward from a saved set.
CAKE_API std::size_t workspace_bytes(const Shape& shape, const Options& options = {}, int threads = 0);
/// Bytes of a saved set of options.save_mode.
CAKE_API std::size_t saved_bytes(const Shape& shape, const Options& options = {});

}  // namespace cake::kda_nondet_train
