// What the phases of one call on the CPU share: documents of a group, heads, segments, states, and the forward.
//
// Forward: (1) segment 0 of every document runs from its initial state, segments 1 .. n-2 are summarised from zero as
// (M, b); (2) per document B_{j+1} = M_j B_j + b_j; (3) segments 1 .. n-1 run from their B_j. The backward
// (backward_driver.h) mirrors it from the right. A task is one (segment, value
// head); its result depends on nothing else.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "ops/kda/cpu/memory.h"

namespace cake::kda {

/// One checked call.
struct Call {
  const Problem* problem;
  const Operands* operands;
  const Settings* settings;
  Lengths lengths;
  Grouping grouping;
  Extents extents;
  MemoryOptions memory;
  int workers = 1;
};

/// Rows of one head of a [B, S, heads, width] view, from row `start` of batch row `batch` on.
template <class Out, class View>
Out head_rows(const View& x, std::int64_t batch, std::int64_t start, std::int64_t head) {
  Out rows;
  if (!x.given) return rows;
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(rows.data)>>, const std::byte, std::byte>;
  const std::int64_t at = batch * x.strides[0] + start * x.strides[1] + head * x.strides[2];
  rows.data = x.data == nullptr ? nullptr : static_cast<Byte*>(x.data) + at * dtype_size(x.dtype);
  rows.row_stride = x.strides[1];
  rows.lane_stride = x.ndim > 3 ? x.strides[3] : 1;
  rows.dtype = x.dtype;
  return rows;
}

/// Operands of value head hv from row `start` of batch row `batch` on.
Head make_head(const Kernels& kernels, const Problem& problem, const Operands& operands, const Settings& settings,
               std::int64_t batch, std::int64_t start, std::int64_t hv);
/// State n, hv of a [N, HV, K, V] view into panels (padding becomes zero).
void state_in(const ConstTensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, float* panels);
/// The inverse.
void state_out(const TensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, const float* panels);
/// State n of `from` (zero if not given) to `to`: what a document without rows does.
void pass_state(const ConstTensorView& from, const TensorView& to, std::int64_t n, std::int64_t hv, const Problem& p);
/// Zeros in rows `from` .. S-1 of batch row 0 (rows past the last offset belong to no document).
void zero_tail(const TensorView& x, std::int64_t from);

/// One group of documents of a call.
class Runner {
 public:
  Runner(const Call& call, const Group& group, const Tables& tables, Scratch* scratch);

  const Call& call() const { return call_; }
  const Problem& problem() const { return *call_.problem; }
  const Extents& extents() const { return call_.extents; }
  const Kernels& kernels() const { return kernels_; }
  const Group& group() const { return group_; }

  /// Operands of value head hv of a document.
  Head head(const Document& d, std::int64_t hv) const {
    return make_head(kernels_, problem(), *call_.operands, *call_.settings, d.batch, d.start, hv);
  }
  /// Segment j of a document; `saved` starts at the group's first document, its parts may be missing.
  SegmentRun segment_run(const Document& d, std::int64_t j, std::int64_t hv, const Head& head, Scratch& scratch,
                         const SavedMemory& saved) const;
  /// State i of a document's inner borders, in an array of states.
  float* border(float* base, const Document& d, std::int64_t i, std::int64_t hv) const {
    return base + ((d.first_border + i) * problem().HV + hv) * extents().state_floats();
  }
  /// Transition of segment j of a document.
  float* transition(float* base, const Document& d, std::int64_t j, std::int64_t hv) const {
    return base + ((d.first_transition + j - 1) * problem().HV + hv) * extents().transition_floats();
  }
  void copy_state(const float* from, float* to) const {
    std::memcpy(to, from, static_cast<std::size_t>(extents().state_floats()) * sizeof(float));
  }

  /// Calls fn(document, segment id, head, scratch) for every segment of the group and each of `heads` heads.
  template <class Fn>
  void each_segment(std::int64_t heads, Fn fn) const {
    parallel_for(group_.totals.segments * heads, call_.workers, [&](std::int64_t task, int worker) {
      const SegmentId id = tables_.segments[task / heads];
      fn(tables_.documents[id.document], id, task % heads, scratch_[worker]);
    });
  }
  /// Calls fn(document, hv) for every document of the group, empty ones too, and value head.
  template <class Fn>
  void each_document(Fn fn) const {
    const std::int64_t heads = problem().HV;
    parallel_for(group_.totals.documents * heads, call_.workers,
                 [&](std::int64_t task, int) { fn(tables_.documents[task / heads], task % heads); });
  }

  /// The forward. With results == nullptr only what is saved is made; with `saving` the products, and the tape where
  /// `memory` has one, are kept.
  void forward(const ForwardResults* results, const SavedMemory& memory, bool saving) const;

 private:
  const Call& call_;
  const Group& group_;
  const Tables& tables_;
  const Kernels& kernels_;
  Scratch* scratch_;
};

/// Calls fn(group, totals of the groups before it) for every group of a call.
template <class Fn>
void each_group(const Call& call, Fn fn) {
  Totals before;
  for (std::int64_t n = 0; n < call.lengths.count();) {
    const Group group = next_group(call.lengths, call.grouping, n);
    fn(group, before);
    add_totals(before, group.totals);
    n += group.totals.documents;
  }
}

/// The sums of every head, [HV][2][Kp], into dA_log and ddt_bias.
void write_params(const Call& call, const BackwardResults& results, const float* sums);

/// Runs the forward. `saved`: memory of the saved set, or nullptr.
void forward_cpu(const Call& call, const ForwardResults& results, Arena& workspace, const SavedMemory* saved);

}  // namespace cake::kda
