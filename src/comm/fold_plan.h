// What a rank computes for documents that lie on several ranks, and where it meets the others.
//
// The unit of work is a part: consecutive chunks of one segment on the rank that holds the chunks' last rows. A chunk
// cut by a border is a part of its own, whose rows are brought together in staging buffers. The parts of a segment form
// a chain: a recurrent state is handed from part to part as exact fp32 values. The end of a chain is a boundary state,
// from which the next chain starts.
//
// Two rules say where segments end. Canonical: at multiples of kSegment from the document's first row, whatever the
// ranks (docs/determinism.md), so a segment may span ranks. Rank: at the borders between ranks, and inside a rank's
// rows in even pieces of at most kSegment; such segments are never cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cake/kcp.h"

namespace cake::kcp {

/// Consecutive chunks of one segment on one rank.
struct Part {
  int rank = 0;
  std::int64_t first_row = 0;  ///< counted from the document's first row
  std::int64_t rows = 0;
  std::int64_t local_row = 0;  ///< of its first row in the rank's tensors; when staged in this rank's staging buffers
  bool staged = false;         ///< a cut chunk: rows come from several pieces
  std::int64_t number = -1;    ///< among the parts of this rank; -1 elsewhere
  std::int64_t rows_before = 0, chunks_before = 0, blocks_before = 0;  ///< sums over this rank's earlier parts
};

/// The parts of one segment, left to right.
struct Chain {
  std::int64_t document = 0, segment = 0;
  bool last = false;         ///< of its document
  std::int64_t own = -1;     ///< among the chains with parts on this rank; -1: none
  std::int64_t ending = -1;  ///< among the chains whose last part is on this rank; -1: another's
  std::vector<Part> parts{};
  int first_rank() const { return parts.front().rank; }
  int last_rank() const { return parts.back().rank; }
  /// It needs a transition: it has a predecessor and a successor.
  bool middle() const { return segment > 0 && !last; }
};

/// Rows of cut chunks in messages with one peer. For outgoing rows `row` counts in the rank's tensors, for incoming and
/// own ones in its staging buffers.
struct StageRows {
  std::int64_t row = 0, rows = 0;
};
struct StagePeer {
  int rank = 0;
  std::int64_t rows = 0;
  std::vector<StageRows> list;
};
struct OwnStageRows {
  std::int64_t row = 0, rows = 0, local_row = 0;
};

/// Floats of the lower triangle of 16 x 16 blocks, in blocks, of a chunk of `rows` rows.
constexpr std::int64_t triangle_blocks(std::int64_t rows) {
  const std::int64_t n = (rows + 15) / 16;
  return n * (n + 1) / 2;
}

/// Where the segments of a document end, in chunks from its first row.
using SegmentRule = std::vector<std::int64_t> (*)(const std::vector<Piece>& pieces, std::int64_t chunks);
/// Multiples of kSegment.
std::vector<std::int64_t> canonical_segments(const std::vector<Piece>& pieces, std::int64_t chunks);
/// Borders between ranks, and at most kSegment rows.
std::vector<std::int64_t> rank_segments(const std::vector<Piece>& pieces, std::int64_t chunks);

/// The chains of a partition by document and segment: the same on every rank but for what concerns "this rank".
struct FoldPlan {
  FoldPlan(const Partition& partition, const RowPlan& rows, int rank, SegmentRule rule);

  int rank = 0, world_size = 1;
  std::int64_t documents = 0;
  std::vector<Chain> chains;
  std::vector<std::size_t> first_chain;  ///< by document
  std::vector<std::int64_t> segments;    ///< by document
  std::vector<bool> spanning;            ///< by document: computed by more than one rank
  /// Documents whose first row lies on another rank than the one that computes their first chunk, which is cut: the
  /// first rank has their initial states, the second needs them.
  struct Edge {
    std::int64_t document = 0;
    int holder = 0, computer = 0;
  };
  std::vector<Edge> edges;
  std::int64_t held_edges = 0;  ///< of this rank as holder
  std::int64_t most_segments = 0;
  std::int64_t total_rows = 0;  ///< of all ranks

  std::size_t chain_at(std::int64_t document, std::int64_t segment) const {
    return first_chain[static_cast<std::size_t>(document)] + static_cast<std::size_t>(segment);
  }
  const Part& own_part(std::int64_t number) const {
    const auto [c, i] = own_parts[static_cast<std::size_t>(number)];
    return chains[c].parts[i];
  }

  // This rank.
  std::vector<std::pair<std::size_t, std::size_t>> own_parts;  ///< by number: chain, index in it
  std::vector<std::size_t> own_chains;                         ///< by Chain::own
  std::vector<std::size_t> ending_chains;                      ///< by Chain::ending
  std::int64_t part_rows = 0, part_chunks = 0, part_blocks = 0,
               longest_part = 0;  ///< sums and a maximum over own parts
  std::int64_t staged_rows = 0, outgoing_rows = 0, incoming_rows = 0;
  std::vector<OwnStageRows> own_rows;
  std::vector<StagePeer> outgoing, incoming;  ///< by rank, ascending
};

}  // namespace cake::kcp
