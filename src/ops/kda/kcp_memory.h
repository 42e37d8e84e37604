// How a call over ranks lays out its saved set, its workspace and its messages on one rank. As in cpu/memory.h every
// carve_* also counts, so a byte query and its call cannot disagree; messages are counted from the lists that send them
// (kcp_moves.h).
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "comm/fold_plan.h"
#include "ops/kda/cpu/memory.h"

namespace cake::kda {

/// Operands whose rows travel, in the order of messages; gradients have the same row sizes.
inline constexpr std::size_t kRowTensors = 5;  // q, k, v, g, beta

/// What a rank gives to an all-gather of boundary values: floats per head at an offset of its block.
struct Contribution {
  std::size_t chain = 0;
  int rank = 0;
  bool transition = false;          ///< M of the chain; else its end state or summary
  std::int64_t at = 0, floats = 0;  ///< per head
};
struct GatherPlan {
  std::vector<Contribution> list;
  std::int64_t longest = 0;  ///< floats per head of the longest block
  /// Where a contribution lies among all blocks; -1: none.
  std::vector<std::int64_t> state_at, transition_at;  ///< by chain, floats per head
};

/// Sizes everything depends on.
struct KcpSizes {
  const kcp::FoldPlan* plan = nullptr;
  Extents extents{};  ///< totals.largest: longest_segment is the longest part, transitions whether a summary runs
  std::array<std::size_t, kRowTensors> row_bytes{};
  std::size_t out_bytes = 0;  ///< of a row of out and dout
  bool tape = false, transfer = true, params = false;
  bool initial_state = false;                      ///< given
  kcp::Exchange exchange = kcp::Exchange::kRelay;  ///< never kAuto
  GatherPlan forward_gather, backward_gather;      ///< only with kGather
  std::vector<std::int64_t> saved_transition;      ///< by chain: number among the saved ones, -1: not saved
  std::int64_t saved_transitions = 0;

  std::size_t all_row_bytes() const {
    std::size_t sum = 0;
    for (const std::size_t n : row_bytes) sum += n;
    return sum;
  }
  std::int64_t state_block() const { return extents.HV * extents.state_floats(); }
  std::int64_t transition_block() const { return extents.HV * extents.transition_floats(); }
  std::int64_t param_block() const { return extents.HV * 2 * extents.Kp; }
  bool grouped() const { return extents.HV != extents.H; }
};
/// Fills what follows from the other fields: exchange (kAuto becomes one of the two), gathers, saved transitions.
void resolve(KcpSizes& sizes);

/// What a forward keeps: start states and chunk products by part, transitions, received rows, tape.
struct KcpSavedMemory {
  float *states = nullptr, *pairs = nullptr, *transitions = nullptr, *tape = nullptr;
  std::byte* staged = nullptr;  ///< operand rows of cut chunks: tensor after tensor [staged rows][row bytes]
};
KcpSavedMemory carve_kcp_saved(Arena& arena, const KcpSizes& sizes);
std::size_t kcp_saved_bytes(const KcpSizes& sizes);

/// What a recompute handle keeps instead of communication.
struct KcpEntryMemory {
  float *states = nullptr, *transitions = nullptr;
  std::byte *staged = nullptr, *out_rows = nullptr;  ///< out_rows: results of this rank's rows that others computed
};
KcpEntryMemory carve_kcp_entry(Arena& arena, const KcpSizes& sizes);

/// Values of one chain on a rank that has parts of it, each [HV][...].
struct ChainMemory {
  float* state = nullptr;       ///< forward: B of its start, then running; backward: dS
  float* summary = nullptr;     ///< middle chains: b, then B of the next; backward: c, then D
  float* transition = nullptr;  ///< middle chains: M
  float* params = nullptr;      ///< chains of several parts: running sum of the gate parameters
};
/// Room for rows in flight.
struct MessageMemory {
  std::byte *out = nullptr, *in = nullptr;
};

struct KcpForwardMemory {
  KcpSavedMemory kept;            ///< without a saved set only what the run itself needs: staged rows
  ChainMemory* chains = nullptr;  ///< by Chain::own
  std::byte* staged_out = nullptr;
  MessageMemory messages;
  float* edges =
      nullptr;  ///< states of documents whose first row lies here and whose first chunk is computed elsewhere
  float *own_block = nullptr, *all_blocks = nullptr;  ///< gather
};
KcpForwardMemory carve_kcp_forward(Arena& arena, const KcpSizes& sizes, bool saving);

struct KcpBackwardMemory {
  KcpSavedMemory recomputed;  ///< only for a recompute
  KcpForwardMemory forward;   ///< the same, with its chains
  ChainMemory* chains = nullptr;
  float** chunk_params = nullptr;  ///< by part; nullptr for a part that is a whole chain
  float** part_grads = nullptr;    ///< by part: dS at its end, where its chain runs ahead; else nullptr
  std::byte* staged_dout = nullptr;
  std::byte* staged_grads = nullptr;  ///< as KcpSavedMemory::staged
  MessageMemory messages;
  float* edges = nullptr;  ///< as KcpForwardMemory::edges, their gradients
  float *own_block = nullptr, *all_blocks = nullptr;
  float *partial_q = nullptr, *partial_k = nullptr;  ///< grouped heads: [part rows][HV][Kp]
};
KcpBackwardMemory carve_kcp_backward(Arena& arena, const KcpSizes& sizes, bool recompute);

std::size_t kcp_forward_bytes(const KcpSizes& sizes, bool saving, int workers);

/// Bytes by phase.
kcp::CommBytes kcp_comm_bytes(const KcpSizes& sizes, bool by_rank);

}  // namespace cake::kda
