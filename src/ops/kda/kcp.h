// KDA over ranks in the canonical order: the same bits as one rank, for every partition. First stage: the arithmetic
// and the relay exchange, with memory of its own; the public packages bind it when workspaces and handles are in place.
//
// The unit of work is a part: consecutive chunks of one segment on the rank that holds the chunks' last rows. A chunk
// cut by a border is a part of its own whose rows are brought together in a staging buffer. Parts of a segment form a
// chain; the state (in a summary b and M, in the backward dS, for gate parameters their running sum) is handed from
// part to part as exact fp32 values. Chains advance level by level, all chains of a level at once, so every rank posts
// its messages in one order and none waits for a rank that waits for it.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cake/comm.h"
#include "cake/kcp.h"
#include "ops/kda/cpu/backward_driver.h"

namespace cake::kda {

/// Consecutive chunks of one segment on one rank.
struct Part {
  int rank = 0;
  std::int64_t first_row = 0;  ///< counted from the document's first row
  std::int64_t rows = 0;
  std::int64_t local_row = 0;  ///< of its first row in the rank's tensors; without meaning when staged
  bool staged = false;         ///< a cut chunk: rows come from several pieces
  std::int64_t number = -1;    ///< among the parts of this rank; -1 elsewhere
};

/// The parts of one segment, left to right.
struct Chain {
  std::int64_t document = 0, segment = 0;
  std::vector<Part> parts;
  int first_rank() const { return parts.front().rank; }
  int last_rank() const { return parts.back().rank; }
};

/// The chains of a partition, by document and segment; the same on every rank but for Part::number.
std::vector<Chain> make_chains(const kcp::Partition& partition, const kcp::RowPlan& plan, int rank);

/// One rank's forward and backward. Every rank makes the same calls.
class KcpKda {
 public:
  /// `operands` are this rank's rows ([1, rows, ...], no cu_seqlens); initial_state and gradients of states are of all
  /// documents, [N, HV, K, V]. The views must stay valid.
  KcpKda(const kcp::Partition& partition, Communicator& communicator, const Operands& operands,
         const Settings& settings);
  ~KcpKda();

  /// final_state is written on every rank: a document's state on the rank with its last row (rank 0 for an empty
  /// document), 0 elsewhere.
  void forward(const ForwardResults& results);
  /// Gradients of this rank's rows; dinitial_state as final_state, on the rank with the document's first row. dA_log
  /// and ddt_bias are the totals of all ranks, with the same bits on each.
  void backward(const BackwardArguments& arguments);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cake::kda
