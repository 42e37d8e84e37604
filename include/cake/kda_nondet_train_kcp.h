// KDA (Kimi Delta Attention) training over ranks, nondeterministic: every rank holds a part of the packed rows (context
// parallel); gradients are right and may differ in their last bits from run to run and between numbers of ranks.
//
// Per value head, with a state S of K x V numbers (Kimi Linear, arXiv:2510.26692):
//   S <- diag(exp g_t) S;  r = beta_t (v_t - S^T k_t);  S <- S + k_t r^T;  o_t = scale S^T q_t
// Same operands, options, errors and tolerances as cake_kda_det_train_kcp. Segments end at the borders between ranks,
// so none is cut and one state crosses each border; dA_log and ddt_bias are added as tasks finish, one sum per rank.
// Every backward of a pack with rows alerts (cake/core/determinism.h), whether or not it would vary; forwards never do.
// Every function that takes a context is collective: all ranks make the same calls in the same order with the same
// options. Runs on the CPU in this version. docs/kcp.md is the page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/determinism.h"
#include "cake/core/dtype.h"
#include "cake/core/error.h"
#include "cake/core/export.h"
#include "cake/core/handle.h"
#include "cake/core/info.h"
#include "cake/core/tensor.h"
#include "cake/kcp.h"

namespace cake::kda_nondet_train_kcp {

/// What the forward keeps for the backward.
enum class SaveMode {
  kLight,  ///< per chunk the two 64 x 64 products of q, k and decays; boundary states; rows received for cut chunks
  kTape,   ///< also the state, u and Vn of every chunk, so that the backward rebuilds nothing
};

/// Rows that a replayed forward (see forward, recompute) leaves in its workspace for the backward that follows, which
/// then rebuilds less; same bits.
enum class SavedRows {
  kAuto,   ///< on the CPU kTape
  kWy,     ///< 768 bytes per row and head; not on the CPU
  kIntra,  ///< 256 bytes per row and head; not on the CPU
  kTape,   ///< the state, u and Vn of every chunk
  kNone,   ///< nothing
};

/// What the hand-off of a workspace has done.
struct HandoffStats {
  std::uint64_t save = 0;                 ///< forwards that left rows
  std::uint64_t bound = 0;                ///< backwards that used them
  std::uint64_t refused_memory = 0;       ///< no room for them
  std::uint64_t refused_overwritten = 0;  ///< another call took their place
  std::uint64_t refused_workspace = 0;    ///< the workspace holds those of another saved set
  std::uint64_t refused_option = 0;       ///< the backward's options did not ask for them
};

/// Operands: this rank's S = context.rows() rows, fragment after fragment as in the partition. q, k, v and beta share
/// one of fp32, bf16, fp16; any strides. The first five may be empty views' data when S is 0, but have their shapes.
struct Inputs {
  ConstTensorView q;              ///< [1, S, H, K], 1 <= K <= 256
  ConstTensorView k;              ///< [1, S, H, K]
  ConstTensorView v;              ///< [1, S, HV, V], HV a multiple of H, 1 <= V <= 256
  ConstTensorView g;              ///< [1, S, HV, K] fp32 natural-log decay <= 0; with use_gate_in_kernel the raw gate
  ConstTensorView beta;           ///< [1, S, HV] in the dtype of q or fp32; a logit with use_beta_sigmoid_in_kernel
  ConstTensorView initial_state;  ///< fp32 [N, HV, K, V] of all N documents; optional (zero). The rank with a
                                  ///< document's first row reads it
  ConstTensorView A_log;          ///< fp32 [HV]; with use_gate_in_kernel (optional there with lower_bound: factor 1)
  ConstTensorView dt_bias;        ///< fp32 [HV, K] or [HV * K]; optional, with use_gate_in_kernel
};

/// Options, the same on every rank, in forward and backward.
struct Options {
  std::optional<float> scale;               ///< of the output; K^-1/2 when not set
  bool use_gate_in_kernel = false;          ///< g is raw: -exp(A_log) softplus(g + dt_bias), or the lower-bound form
  std::optional<float> lower_bound;         ///< gate lower_bound * sigmoid(exp(A_log) (g + dt_bias)); < 0
  bool use_qk_l2norm_in_kernel = false;     ///< q and k rows are divided by sqrt(sum of squares + 1e-6)
  bool use_beta_sigmoid_in_kernel = false;  ///< beta = sigmoid(beta)
  bool allow_neg_eigval = false;            ///< beta is doubled after the sigmoid; needs use_beta_sigmoid_in_kernel
  SaveMode save_mode = SaveMode::kLight;    ///< what a saved set holds
  kcp::Exchange exchange = kcp::Exchange::kAuto;       ///< how boundary states travel; same bits
  std::optional<bool> save_transfer;                   ///< the saved set holds the transitions M (default); else the
                                                       ///< backward makes them again; same bits
  std::optional<kcp::CheckpointKeep> checkpoint_keep;  ///< what a recompute handle keeps; fixes save_transfer
  std::optional<bool> checkpoint_handoff;   ///< a replayed forward leaves rows for its backward (default: yes)
  SavedRows saved_rows = SavedRows::kAuto;  ///< which
};

/// Results of the forward.
struct Outputs {
  TensorView out;          ///< [1, S, HV, V] in the dtype of q
  TensorView final_state;  ///< fp32 [N, HV, K, V]; optional. The rank with a document's last row writes its state (rank
                           ///< 0 that of an empty document), the others exact 0: a sum over ranks is the whole
};

namespace detail {
struct PartialsState;
struct SavedState;
struct WorkspaceState;
}  // namespace detail

/// One partial sum of the gate parameters' gradients.
struct GateParamPartial {
  std::int64_t document = 0;    ///< number in the pack
  std::int64_t segment = 0;     ///< of the document; -1: all that this rank holds
  const float* sums = nullptr;  ///< [HV][2][Kp], Kp = K rounded up to a multiple of 16: of ddt_bias and, before the sum
                                ///< over channels, of dA_log
};

/// This rank's partial sums of dA_log and ddt_bias, made by a backward. They are a rank's share until
/// reduce_gate_param_grads brings the ranks together.
class CAKE_API GateParamPartials {
 public:
  /// Empty; a backward fills it. Its memory grows once and is kept.
  GateParamPartials();
  ~GateParamPartials();
  /// Leaves the other one unusable.
  GateParamPartials(GateParamPartials&&) noexcept;
  /// Leaves the other one unusable.
  GateParamPartials& operator=(GateParamPartials&&) noexcept;
  /// True until a backward has filled it.
  bool empty() const;
  /// Bytes it holds.
  std::size_t nbytes() const;
  /// The partials, in pack order.
  std::vector<GateParamPartial> partials() const;
  /// This rank's share, which a sum over ranks completes: dA_log fp32 [HV] and ddt_bias fp32 [HV, K] or [HV * K], each
  /// optional. Throws InvalidArgument.
  void local_grads(const TensorView& dA_log, const TensorView& ddt_bias) const;
  /// "cake/kda/nondet/kcp/partials/v1".
  static Tag tag();
  /// The object behind the class, for the package's own functions.
  detail::PartialsState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::PartialsState> state_;
};

/// Results of the backward, each optional.
struct Gradients {
  TensorView dq;              ///< [1, S, H, K] in the dtype of q
  TensorView dk;              ///< [1, S, H, K] in the dtype of k
  TensorView dv;              ///< [1, S, HV, V] in the dtype of v
  TensorView dg;              ///< [1, S, HV, K] in the dtype of g
  TensorView dbeta;           ///< [1, S, HV] in the dtype of beta
  TensorView dinitial_state;  ///< fp32 [N, HV, K, V]; needs initial_state. Written by the rank with the document's
                              ///< first row (rank 0 of an empty document), exact 0 elsewhere
  GateParamPartials* gate_params = nullptr;  ///< of dA_log and ddt_bias; needs use_gate_in_kernel with A_log or dt_bias
};

/// Sizes for the byte queries; rows and documents come from the context.
struct Shape {
  std::int64_t H = 1;                  ///< heads of q and k
  std::int64_t HV = 1;                 ///< heads of v, a multiple of H
  std::int64_t K = 0;                  ///< head dimension of q and k
  std::int64_t V = 0;                  ///< head dimension of v
  DType dtype = DType::kFloat32;       ///< of q, k, v, out
  DType gate_dtype = DType::kFloat32;  ///< of g
  DType beta_dtype = DType::kFloat32;  ///< of beta
  bool gate_param_grads = false;       ///< the backward fills GateParamPartials
  bool initial_state = false;          ///< given, and its gradient is returned
};

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
  /// "cake/kda/nondet/kcp/saved/v1".
  static Tag tag();
  /// The object behind the class, for the package's own functions.
  detail::SavedState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::SavedState> state_;
};

/// Scratch memory for any number of calls of this package, one after another, on any context.
class CAKE_API Workspace {
 public:
  /// Grows when a call needs more.
  Workspace();
  /// Uses the caller's memory; a call that needs more throws OutOfMemory before it writes anything.
  Workspace(void* memory, std::size_t bytes);
  ~Workspace();
  /// Leaves the other one unusable.
  Workspace(Workspace&&) noexcept;
  /// Leaves the other one unusable.
  Workspace& operator=(Workspace&&) noexcept;
  /// Bytes it holds, without handed-off rows.
  std::size_t nbytes() const;
  /// Counters of the hand-off since it was made.
  HandoffStats handoff_stats() const;
  /// "cake/kda/nondet/kcp/workspace/v1".
  static Tag tag();
  /// The object behind the class, for the package's own functions.
  detail::WorkspaceState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::WorkspaceState> state_;
};

/// True when this version has an implementation for the device.
CAKE_API bool is_supported(Device device = {});
/// The implementations in the order they are tried, with the reason each was refused on this machine.
CAKE_API std::vector<Implementation> implementations(Device device = {});

/// Computes out and, where given, final_state. With `saved` it keeps what the backward reads. Without a workspace one
/// is allocated for the call. With `recompute` (see kcp::RecomputeHandle) the first forward stores under "kda" what it
/// receives and the next ones communicate nothing. All ranks' arguments are checked, and compared where they must
/// agree, before anything is written. Throws InvalidArgument (shape, dtype, a missing or contradicting option, an
/// option that differs between ranks; the message names it), NotSupported, OutOfMemory, CommError (another rank's
/// error, or a rank that does not answer).
CAKE_API void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs,
                      const Options& options = {}, Workspace* workspace = nullptr, Saved* saved = nullptr,
                      kcp::RecomputeHandle* recompute = nullptr);

/// Computes the gradients asked for. `dout` is [1, S, HV, V] in the dtype of q, any strides; `d_final_state` fp32
/// [N, HV, K, V] or not given (zero): the rank with a document's last row reads it (rank 0 that of an empty document).
/// `saved` comes from the forward of the same operands, context and options; without it everything is recomputed from
/// the inputs, with the forward's communication. May be called again.
/// `policy` is what the determinism alert does, this thread's default when not given.
/// Errors as forward; also InvalidArgument for an empty saved set or one of another problem, context or other options;
/// after all of these NondeterminismAlert under kForbid, before anything is written.
CAKE_API void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options = {},
                       Workspace* workspace = nullptr, const Saved* saved = nullptr,
                       std::optional<DeterminismPolicy> policy = {});

/// Collective: the gradients of the gate parameters over all ranks, with equal bits on each: an all-gather of the
/// partials, then one fold in pack order. dA_log fp32 [HV], ddt_bias fp32 [HV, K] or [HV * K], each optional. Throws
/// InvalidArgument for empty partials or those of another context.
CAKE_API void reduce_gate_param_grads(const kcp::Context& context, const GateParamPartials& partials,
                                      const TensorView& dA_log, const TensorView& ddt_bias);

/// Handles share their object and carry its tag, for borders where C++ types are lost.
CAKE_API Handle make_handle(std::shared_ptr<Saved> saved);
/// The same for a workspace.
CAKE_API Handle make_handle(std::shared_ptr<Workspace> workspace);
/// forward with handles; an empty one means none. A workspace of the other mode is WrongMode, a saved set of the other
/// mode WrongMode naming the package it belongs to, any other object WrongType; then as forward.
CAKE_API void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      const Handle& workspace, const Handle& saved, const Handle& recompute);
/// backward with handles. Checks the saved set, then the workspace, then as backward.
CAKE_API void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
                       const Handle& workspace, const Handle& saved, std::optional<DeterminismPolicy> policy = {});

/// Workspace bytes this rank needs for a forward, without or (smaller) with a saved set; `threads` 0 means
/// num_threads(). With fewer threads at the call the same memory serves, with more the call uses as many as fit. Not
/// collective.
CAKE_API std::size_t forward_workspace_bytes(const kcp::Context& context, const Shape& shape,
                                             const Options& options = {}, bool saving = false, int threads = 0);
/// Workspace bytes for a backward, from a saved set or (recompute) from the inputs alone. Not collective.
CAKE_API std::size_t backward_workspace_bytes(const kcp::Context& context, const Shape& shape, bool recompute,
                                              const Options& options = {}, int threads = 0);
/// Workspace bytes that serve forward and backward. Not collective.
CAKE_API std::size_t workspace_bytes(const kcp::Context& context, const Shape& shape, const Options& options = {},
                                     int threads = 0);
/// Bytes a hand-off takes beside those of the workspace; 0 where the options ask for none. In a caller's memory the
/// rows take its end when it is larger by this. Not collective.
CAKE_API std::size_t handoff_bytes(const kcp::Context& context, const Shape& shape, const Options& options = {});
/// Bytes of a saved set of options.save_mode. Not collective.
CAKE_API std::size_t saved_bytes(const kcp::Context& context, const Shape& shape, const Options& options = {});
/// Bytes this rank sends and receives in a forward and a backward from a saved set (from the inputs alone, the backward
/// moves the forward's c1 and c2 and the rows of halo_fwd again, and no transitions in b1 and b2). Not collective.
CAKE_API kcp::CommBytes comm_bytes(const kcp::Context& context, const Shape& shape, const Options& options = {});

}  // namespace cake::kda_nondet_train_kcp
