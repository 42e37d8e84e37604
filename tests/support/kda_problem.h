// A KDA problem with its operands, drawn from a seed, and the ways to run it: through the library under any schedule,
// memory content and layout, and through the float64 reference.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/cpu_isa.h"
#include "cake/kda_det_train.h"
#include "ops/kda/reference.h"
#include "tests/support/host_tensor.h"
#include "tests/support/random.h"

namespace cake::test {

/// What the log decays (of plain gates) look like.
enum class GateRegime {
  kZero,         ///< 0
  kFaint,        ///< about -1e-4: states reach over thousands of tokens
  kWeak,         ///< about -0.01
  kModerate,     ///< about -0.3, spread over two decades
  kMinus1,       ///< about -1
  kMinus5,       ///< -5
  kMinus20,      ///< -20
  kAlternating,  ///< 0 and -1 on alternate tokens
  kOneChannel,   ///< channel 0 at -5, the others at -0.001
  kHoles,        ///< moderate with -1000 in a fifth of the channels of each token
  kHardResets,   ///< moderate with -1000 in all channels of every seventh token
  kPerHead,      ///< -0.01, -0.1, -0.5, -2 by value head
};
const std::vector<GateRegime>& all_gate_regimes();
std::string gate_regime_name(GateRegime regime);

/// What q, k and v look like.
enum class DataKind {
  kGaussian,    ///< independent normal numbers
  kScaled,      ///< q and v 30 times larger, k too where it is normalised
  kCorrelated,  ///< all rows near one common row
  kRepeated,    ///< four different keys only
};
std::string data_kind_name(DataKind kind);

/// A problem in words; make_problem draws its numbers.
struct KdaSpec {
  std::vector<std::int64_t> lengths = {100};
  bool packed = true;              ///< cu_seqlens given; else every document is one row of the batch (equal lengths)
  std::int64_t rows_past_end = 0;  ///< packed only: rows behind the last offset, NaN in every operand
  std::int64_t H = 1, HV = 2, K = 16, V = 16;
  DType dtype = DType::kFloat32;
  DType raw_gate_dtype = DType::kFloat32;  ///< of g with use_gate_in_kernel
  bool beta_fp32 = false;                  ///< beta in fp32 whatever q is
  GateRegime gate = GateRegime::kModerate;
  DataKind data = DataKind::kGaussian;
  double beta_max = 1.0;  ///< small: states are overwritten slowly
  bool initial_state = false, final_state = true, d_final_state = true;
  bool A_log = true, dt_bias = true;  ///< with use_gate_in_kernel
  bool flat_dt_bias = false;          ///< dt_bias as [HV * K]
  kda_det_train::Options options;
  std::uint64_t seed = 1;
  /// Everything that identifies the problem, for failure messages.
  std::string text() const;
};

/// A problem with its operands.
struct KdaProblem {
  KdaSpec spec;
  std::int64_t B = 1, S = 0, N = 0;
  std::vector<std::int64_t> offsets;  ///< N + 1, in rows of the flattened [B * S]
  HostTensor q, k, v, g, beta, dout;
  std::optional<HostTensor> cu_seqlens, initial_state, A_log, dt_bias, d_final_state;

  kda_det_train::Inputs inputs() const;
  kda_det_train::Shape shape(bool with_offsets = true) const;
  kda::ReferenceInputs reference_inputs() const;
};

KdaProblem make_problem(const KdaSpec& spec);
/// The documents `documents`, in that order, packed without rows past the end.
KdaProblem select_documents(const KdaProblem& problem, const std::vector<std::int64_t>& documents);

/// Results by name: out, final_state, dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state.
using KdaResults = std::map<std::string, HostTensor>;

/// Where workspace and saved set live.
enum class Memory {
  kNone,     ///< no workspace: the call allocates
  kLibrary,  ///< a growing workspace
  kCaller,   ///< exactly the bytes the queries ask for, filled with a pattern, between guards
};

/// One way to run a problem. No choice here may change a bit of the results.
struct KdaRun {
  int threads = 0;
  std::optional<CpuIsa> isa{};
  std::optional<std::uint64_t> shuffle{};
  bool recompute = false;  ///< backward without a saved set
  Memory memory = Memory::kLibrary;
  std::uint32_t fill = kNanPattern;
  std::size_t misalignment = 1;
  Layout inputs = Layout::kContiguous, outputs = Layout::kContiguous;
  double poison = __builtin_nan("");  ///< what outputs hold before the call
  bool forward_only = false;
  bool nondet = false;  ///< through cake::kda_nondet_train; dA_log and ddt_bias may then differ in their last bits
  bool tape = false, lean = false, plan = false;  ///< plan: through a Plan, which brings its own memory
  std::int64_t tail_passes = 1;
  std::optional<std::int64_t> batch_tokens{}, max_docs_per_batch{};
};

/// Runs forward and backward through the package. Fails the current test when a guard byte was written.
KdaResults run(const KdaProblem& problem, const KdaRun& how = {});
/// The same with the caller's views of the operands and incoming gradients instead of the problem's.
KdaResults run_views(const KdaProblem& problem, const kda_det_train::Inputs& inputs, const ConstTensorView& dout,
                     const ConstTensorView& d_final_state, const KdaRun& how = {});

/// Results of the reference in float64, and the sums of squared terms of ReferenceGradients: of the parameter gradients
/// in `squares`, of dq and dk through the l2 norm in `norm_squares`.
struct ReferenceResults {
  std::map<std::string, std::vector<double>> tensors, squares, norm_squares;
};
ReferenceResults run_reference(const KdaProblem& problem);
ReferenceResults run_reference(const kda::ReferenceInputs& inputs, const std::vector<double>& dout,
                               const std::vector<double>& d_final_state);

/// The part of a per-document tensor that belongs to documents `documents` (rows, or states), in that order.
HostTensor document_part(const KdaProblem& problem, const std::string& name, const HostTensor& tensor,
                         const std::vector<std::int64_t>& documents);
/// True for tensors with one entry per document and head, [N, HV, K, V].
bool is_state(const std::string& name);
/// True for gradients of gate parameters.
bool is_parameter_gradient(const std::string& name);

}  // namespace cake::test
